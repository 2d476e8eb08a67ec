"""Who makes updates of a model: ours, and transformers with torch; for `flow=bench_train`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import version
from typing import Any, Literal

from pipeline.ops import Kernel
from pipeline.stage import Checkpoint

BETAS, EPS, DECAY, NORM = (0.9, 0.95), 1e-8, 0.1, 1.0


@dataclass(frozen=True)
class Ours:
    """See `pipeline.bench.training.Trainer`.

    Attributes:
        engine: whose kernels and families these are.
        backends: of all ops, in the place of the engine's; None: those.
    """

    engine: Any
    backends: tuple[str, ...] | None = None

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    def why_not(self, checkpoint: Checkpoint) -> str:
        return ""

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("jax", "jaxlib", "flax", "optax")}

    def flops_of_token(self, checkpoint: Checkpoint) -> float:
        from plugins.models.family import family_of
        from plugins.train.footprint import BACK, FORTH, products

        parameters = family_of(checkpoint.config, self.engine.families).parameters(checkpoint.config)
        return 2 * (FORTH + BACK) * products(parameters, checkpoint.config)

    def begin(self, checkpoint: Checkpoint, tokens: Any, rate: float, threads: int) -> Callable[[], float]:
        import jax
        import numpy as np

        from pipeline.tensors.spec import TensorSpec
        from plugins.engine.load import fill, parameters
        from plugins.models.common.ops import Ops
        from plugins.models.common.weights import Weights
        from plugins.models.family import family_of
        from plugins.train.objectives import CausalLM
        from plugins.train.optimizers import AdamW
        from plugins.train.schedules import Schedule
        from plugins.train.step import make_step

        engine = self.engine
        ops = engine.ops
        if self.backends is not None:
            ops = Ops(*(Kernel(f.name, self.backends) for f in fields(Ops)))
        specs = {name: TensorSpec(spec.shape, "F32") for name, spec in checkpoint.store.specs.items()}
        weights = Weights(specs, "f32")
        model = family_of(checkpoint.config, engine.families).build(checkpoint.config, weights, ops, "float32")
        weights.check(checkpoint.config)
        optimizer = AdamW(
            rate=rate, schedule=Schedule("constant"), clip=NORM, decay=DECAY, b1=BETAS[0], b2=BETAS[1], eps=EPS
        )
        step = make_step(model, CausalLM(), optimizer, steps=1 << 20)
        fill(model, checkpoint, jax.devices()[0], cast=engine.cast, unpack=engine.unpack)
        state = step.init({p.names[0]: jax.numpy.array(p.get_value(), copy=True) for p in parameters(model)})
        length, ids = tokens.shape[1], tokens[None]
        at = np.broadcast_to(np.arange(length, dtype=np.int32), ids.shape)
        batch = {
            "tokens": ids, "targets": np.roll(ids, -1, -1), "weights": (at < length - 1).astype(np.float32),
            "positions": at, "segments": np.ones_like(at),
        }  # fmt: skip
        key = jax.random.key(0)

        def update() -> float:
            nonlocal state
            state, seen = step(state, batch, key)
            return float(seen["loss"])

        return update


@dataclass(frozen=True)
class Transformers:
    """See `pipeline.bench.training.Trainer`.

    Attributes:
        experts: how it multiplies with those of a mixture; null: as it likes.
    """

    experts: Literal["grouped_mm", "eager"] | None = None

    @property
    def needs(self) -> Mapping[str, str]:
        return dict.fromkeys(("torch", "transformers"), "pip install torch transformers")

    def why_not(self, checkpoint: Checkpoint) -> str:
        source = checkpoint.source
        if source is None or not (source / "config.json").is_file() or not list(source.glob("*.safetensors")):
            return "it reads folders of config.json and .safetensors"
        if any(spec.scheme is not None for spec in checkpoint.store.specs.values()):
            return "it trains plain weights alone"
        return ""

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("torch", "transformers")}

    def flops_of_token(self, checkpoint: Checkpoint) -> float:
        return 0.0  # of the same model as ours, which knows it

    def begin(self, checkpoint: Checkpoint, tokens: Any, rate: float, threads: int) -> Callable[[], float]:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.set_num_threads(threads)
        config = AutoConfig.from_pretrained(checkpoint.source, local_files_only=True)
        config._attn_implementation = "eager"
        if self.experts is not None:
            config._experts_implementation = self.experts
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint.source, config=config, dtype=torch.float32, local_files_only=True
        ).train()
        plain = [p for name, p in model.named_parameters() if name.endswith(("norm.weight", "bias", "sinks"))]
        those = {id(p) for p in plain}
        rest = [p for p in model.parameters() if id(p) not in those]
        groups = [{"params": rest}, {"params": plain, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=rate, betas=BETAS, eps=EPS, weight_decay=DECAY)
        ids = torch.from_numpy(tokens).long()

        def update() -> float:
            loss = model(ids, labels=ids, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), NORM)
            optimizer.step()
            return float(loss)

        return update
