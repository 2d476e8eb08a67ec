"""The engine as a plugin node: which families there are, which kernels they use, and in what dtypes they run."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from pipeline import backends
from pipeline.digest import InputFile
from pipeline.engine import NOTHING, Usage
from pipeline.errors import PlanError, Problem, SourceError
from pipeline.mesh import SINGLE, Mesh, Placement, Step
from pipeline.ops import Call, Kernel
from pipeline.planning.layout import batch_problems, lay_out
from pipeline.planning.mesh_costs import weights_nbytes
from pipeline.planning.rates import cores
from pipeline.planning.reading import bytes_read
from pipeline.running import gang
from pipeline.running.keeper import here
from pipeline.stage import NEUTRAL, Checkpoint, Footprint, Gang
from pipeline.units import parse_bytes
from plugins.engine.sizes import BUCKETS, LOGITS_NBYTES, SMALLEST_CACHE, power_of_two
from plugins.engine.steps import rows_of_each, temporary_nbytes
from plugins.engine.steps import steps as mesh_steps
from plugins.models.calls import calls
from plugins.models.common.ops import Ops
from plugins.models.device import WeightsDtype, cache_nbytes, device_nbytes, device_spec, keys_of, left_out, unused
from plugins.models.family import Family, family_of

# Beside the weights; measured on CPU with pipeline.testing.peak, without kept programs: the main job takes 574 MiB in
# all (planned with this: 1009), and evaluating SmolLM2-135M with 257 MiB of bf16 weights 822 MiB (1370).
HOST_NBYTES = 480 << 20  # JAX, Flax and compiling
# Compiling, for each layer, as they are unrolled: evaluating toys of 24, 48 and 96 layers, as they are and in mxfp4,
# with next to no weights, took 675, 939 and 1475 MiB.
PROGRAM_NBYTES = 11 << 20
SCORES_NBYTES = 6 * LOGITS_NBYTES  # logits, log probabilities and their differences
# Native products of a prompt, for each thread and one more: activations in order (ORDERED of native/src/gemm.cc), and
# what a thread works in.
PRODUCT_NBYTES = (8 << 20) + (1 << 20)
ACTIVATION_NBYTES = {"bf16": 2, "f32": 4}
TOKENIZING_NBYTES = 170  # for each byte of a text (measured: 1.8 GB for 11 MB of text)
ARCHIVE_NBYTES = 64 << 10  # what a baseline's archive has beside its arrays, and its record


class Tokenizers(Protocol):
    """Where tokenizers come from: a plugin node."""

    def check(self, checkpoint: Checkpoint) -> None:
        """Raises SourceError when the checkpoint has none."""
        ...

    def inputs(self, checkpoint: Checkpoint) -> tuple[InputFile, ...]:
        """The files that `load` reads beside those of the checkpoint."""
        ...

    def exists(self, checkpoint: Checkpoint) -> bool:
        """Whether it has one, broken or not."""
        ...

    def load(self, checkpoint: Checkpoint) -> Any:
        """A `plugins.tokenizers.tokenizer.Tokenizer`."""
        ...

    def ends(self, checkpoint: Checkpoint) -> tuple[int, ...]:
        """Ids that end a generation, as far as the checkpoint says without a tokenizer."""
        ...


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an engine's options mean on this machine.

    Attributes:
        device: the platform and the kind of device, whichever of several equal ones.
        dtype: of activations.
        cache: dtype of the KV cache.
    """

    device: str
    dtype: Literal["bf16", "f32"]
    cache: Literal["bf16", "f32", "fp8", "int8"]


class Loader(Protocol):
    """What puts models on a device: a plugin node, which knows the framework so that the engine need not."""

    def resolve(self, engine: "Engine") -> Resolved:
        """Raises ConfigError: no such device."""
        ...

    def join(self, engine: "Engine", rank: int, address: str, *, alone: bool) -> None:
        """Make this process the one of that rank of those that the engine's mesh is divided among.

        Args:
            address: HOST:PORT of the first.
            alone: it takes all devices that it sees; else its share of them.
        """
        ...

    def load(self, engine: "Engine", checkpoint: Checkpoint) -> Any:
        """A `plugins.engine.session.Model`; see `Engine.load`."""
        ...


@dataclass(frozen=True)
class Engine:
    """JAX, on one device or on a mesh of them.

    Attributes:
        families: the first whose `model_types` name the checkpoint's builds the model.
        ops: kernels of the model.
        cast: widens or narrows plain weights that `weights_dtype` wants in another dtype.
        unpack: decodes packed tensors for whoever wants them plain.
        tokenizer: finds the checkpoint's.
        loader: puts the model on the device.
        mesh: how devices are arranged, and what is divided over them; by default one.
        dtype: of activations; `auto`: fp32 on CPU, where bf16 is emulated, bf16 elsewhere.
        weights_dtype: dtype of plain weights on the device; `keep`: as stored. Packed ones stay packed.
        cache: dtype of the KV cache; `auto`: as activations.
        device: `auto` is JAX's default; or `cpu`, `gpu`, `tpu`, with a number: `gpu:1`.
        programs: folder where compiled programs are kept for later runs; `auto`: what JAX_COMPILATION_CACHE_DIR says,
            or else weightmill/jax in the user's cache folder; None: nowhere.
        programs_most: bytes that they may take there; those not used for longest go first. Where
            JAX_COMPILATION_CACHE_DIR says the folder, JAX_COMPILATION_CACHE_MAX_SIZE says this.
    """

    families: tuple[Family, ...]
    ops: Ops
    cast: Kernel
    unpack: Kernel
    tokenizer: Tokenizers
    loader: Loader
    mesh: Mesh = SINGLE
    dtype: Literal["auto", "bf16", "f32"] = "auto"
    weights_dtype: WeightsDtype = "keep"
    cache: Literal["auto", "bf16", "f32", "fp8", "int8"] = "auto"
    device: str = "auto"
    programs: str | None = field(default="auto", metadata=NEUTRAL)
    programs_most: str = field(default="2GiB", metadata=NEUTRAL)

    def __post_init__(self) -> None:
        parse_bytes(self.programs_most, "engine.programs_most")

    def plan(
        self, checkpoint: Checkpoint, *, text: bool = True, plain: bool = False, usage: Usage = NOTHING
    ) -> Footprint:
        """See `pipeline.engine.Engine.plan`.

        Raises:
            PlanError: no family knows the model, or (with `text`) there is no tokenizer.
        """
        problems: list[Problem] = []
        try:
            weights, ignored = self.weights(checkpoint, plain=plain)
        except PlanError as why:
            problems += why.problems
        # What has no weights here need not have its tokenizer here either; one that is here is looked at.
        if text and not (checkpoint.outline and not self.tokenizer.exists(checkpoint)):
            try:
                self.tokenizer.check(checkpoint)
            except SourceError as why:
                problems.append(Problem("tokenizer", str(why)))
        if problems:
            raise PlanError(Problem(p.where, f"{p.message}; flow=convert needs no model to run") for p in problems)
        specs = checkpoint.store.specs
        dtype = self._dtype(plain=plain)
        cache = self._cache(checkpoint, usage, dtype) if usage.generates else 0
        placement = self._placed(checkpoint, usage, plain=plain) if self.mesh.size > 1 else None
        if (p := placement) is not None:
            weights = weights_nbytes(p.mesh, p.parameters, p.specs, p.layouts)
        device = weights + cache
        largest = max((s.nbytes for s in specs.values()), default=0)
        # Scoring, after loading: the baseline's head is there as it is held, a packed one as fp32.
        vocab = checkpoint.config.get("vocab_size")
        heads = [s for s in specs.values() if s.shape[:1] == (vocab,)]
        head = max((s.nbytes if s.scheme is None else 4 * s.size for s in heads), default=0)
        hidden = max((s.shape[-1] for s in heads), default=0)
        state = ACTIVATION_NBYTES[dtype] * hidden  # of a token: written for a baseline, and read to compare with one
        kept = max(usage.keeps, default=0) * state
        # Activations of what goes through a layer at once: what comes in and out of its widest matrix, as fp32.
        wide = max((sum(s.shape[-2:]) for n, s in specs.items() if ".layers." in n and len(s.shape) > 1), default=0)
        activations = usage.batch * min(usage.length, BUCKETS[-1]) * 4 * wide
        steps: tuple[Step, ...] = ()
        reads: tuple[int, ...] = ()
        temporary = 0
        if placement is not None:
            steps = tuple(mesh_steps(placement, usage, ACTIVATION_NBYTES[dtype]))
            p = placement
            reads = tuple(bytes_read(checkpoint.store, p.mesh, p.parameters, p.layouts, p.mesh.hosts))
            temporary = temporary_nbytes(placement, steps, wide, max((s.shape[0] for s in heads), default=0))
        layers = len({n.partition(".layers.")[2].partition(".")[0] for n in specs if ".layers." in n})
        tokenizing = TOKENIZING_NBYTES * usage.text_nbytes
        host = HOST_NBYTES + layers * PROGRAM_NBYTES + tokenizing
        host += max(2 * largest, SCORES_NBYTES + head + 2 * kept + activations)
        host += self._attended(checkpoint, usage) if usage.generates and self._on_host else 0
        host += (cores() + 1) * PRODUCT_NBYTES if self._on_host else 0
        kind = "on the host" if self._on_host else "accelerator"
        mesh = [f"{axis}={n}" for axis, n in self.mesh.axes.items() if n > 1]
        return Footprint(
            device,
            self.mesh.processes * host + (self.mesh.size * (device + temporary) if self._on_host else 0),
            self.tokenizer.inputs(checkpoint),
            ignored,
            cache_nbytes=cache,
            disk_nbytes=sum(n * state + head + ARCHIVE_NBYTES for n in usage.keeps),
            moved_nbytes=weights * usage.tokens,
            rate=" ".join([kind, dtype, *mesh, *sorted({s.encoding for s in specs.values()})]),
            devices=self.mesh.size,
            temporary_nbytes=temporary,
            steps=steps,
            host_reads=reads,
        )

    @property
    def gang(self) -> Gang | None:
        """See `pipeline.engine.EngineHooks`."""
        return Gang(self.mesh.processes, self.mesh.coordinator, self._join) if self.mesh.processes > 1 else None

    def _join(self, rank: int, address: str, *, alone: bool) -> None:
        self.loader.join(self, rank, address, alone=alone)

    def placement(self, checkpoint: Checkpoint, mesh: Mesh | None = None, *, plain: bool = False) -> Placement:
        """How the weights lie over `mesh`, by default the engine's own. See `pipeline.engine.EngineHooks`.

        Args:
            plain: as in `load`.

        Raises:
            PlanError: no family knows the model, or the mesh does not fit it; all problems at once.
        """
        mesh = mesh or self.mesh
        _, ignored = self.weights(checkpoint)
        held: WeightsDtype = "f32" if plain else self.weights_dtype
        specs = {n: device_spec(s, held) for n, s in checkpoint.store.specs.items() if n not in ignored}
        parameters = family_of(checkpoint.config, self.families).parameters(checkpoint.config)
        return Placement(mesh, parameters, lay_out(mesh, parameters, specs), specs)

    def for_one_device(self) -> list[Problem]:
        """Which options are for one device only."""
        found = []
        if ":" in self.device:
            platform = self.device.partition(":")[0]
            text = f"{self.device!r} is one device, and the mesh has {self.mesh.size}; {platform!r} is all of its kind"
            found.append(Problem("engine.device", text))
        kernels = (getattr(self.ops, f.name) for f in fields(self.ops))
        if untraced := {name for k in kernels for name in k.backends if not backends.about(name).traced}:
            text = f"{', '.join(sorted(untraced))} cannot be compiled, and what is not runs on one device"
            found.append(Problem("kernels", f"{text}; kernels=auto, or mesh=single"))
        return found

    def _placed(self, checkpoint: Checkpoint, usage: Usage, *, plain: bool) -> Placement:
        """How the weights lie over the engine's mesh.

        Raises:
            PlanError: as `placement`; the rows of `usage` do not divide, or another mesh was laid out for.
        """
        problems = self.for_one_device()
        problems += [] if usage.generates else batch_problems(self.mesh, {"evaluate.windows.batch": usage.batch})
        if checkpoint.placement is not None and checkpoint.placement.mesh != self.mesh:
            given = checkpoint.placement.mesh.axes
            text = f"is laid out over {dict(given)}, and the engine has {dict(self.mesh.axes)}; mesh= sets both"
            problems.append(Problem("stages.shard.mesh", text))
        try:
            found = self.placement(checkpoint, plain=plain)
        except PlanError as why:
            raise PlanError([*why.problems, *problems], exit_code=why.exit_code) from None
        if problems:
            raise PlanError(problems)
        return found

    def _dtype(self, *, plain: bool) -> str:
        """Of activations, as far as can be told without JAX."""
        if plain or self.dtype == "auto":
            return "f32" if plain or self._on_host else "bf16"
        return self.dtype

    def _cache(self, checkpoint: Checkpoint, usage: Usage, dtype: str) -> int:
        """Bytes of the KV cache on each device, in the sizes that programs are compiled for."""
        batch, length = rows_of_each(self.mesh, usage), power_of_two(usage.length, SMALLEST_CACHE)
        held = dtype if self.cache == "auto" else self.cache
        ways = self.mesh.ways(self.mesh.over("kv_heads"))
        return cache_nbytes(checkpoint.store.specs, checkpoint.config, batch, length, held, ways)

    def _attended(self, checkpoint: Checkpoint, usage: Usage) -> int:
        """Bytes of the keys and values of one layer as fp32, which attention copies out of the cache on CPUs (measured:
        with 256 MiB and 1 GiB of cache, in two layers, 796 and 1794 MiB)."""
        slots = power_of_two(usage.batch) * power_of_two(usage.length, SMALLEST_CACHE)
        return 2 * slots * 4 * max(keys_of(checkpoint.store.specs).values(), default=0)

    def weights(self, checkpoint: Checkpoint, *, plain: bool = False) -> tuple[int, dict[str, str]]:
        """Bytes that the weights will take on the device, and the tensors that the model does not read, with reasons.

        Raises:
            PlanError: no family knows the model.
        """
        family = family_of(checkpoint.config, self.families)
        tied = bool(checkpoint.config.get("tie_word_embeddings", family.tied))
        ignored = left_out(checkpoint.store.specs, unused(tied=tied))
        return device_nbytes(checkpoint.store.specs, ignored, "f32" if plain else self.weights_dtype), ignored

    def calls(self, checkpoint: Checkpoint, *, rows: int = 1, platform: str = "") -> Iterator[Call]:
        """The kernel calls of one pass of the model over `rows` tokens.

        Args:
            platform: of the device, as JAX names it; by default what it looks like without JAX.

        Raises:
            PlanError: no family knows the model.
        """
        platform = platform or self.platform
        dtype = {"bf16": "BF16", "f32": "F32"}.get(self.dtype, "F32" if platform == "cpu" else "BF16")
        _, ignored = self.weights(checkpoint)
        specs = {n: device_spec(s, self.weights_dtype) for n, s in checkpoint.store.specs.items() if n not in ignored}
        yield from calls(specs, checkpoint.config, self.ops.on(platform), dtype, rows)

    @property
    def platform(self) -> str:
        """Of the device, as far as can be told without JAX."""
        wanted = os.environ.get("JAX_PLATFORMS", "") if self.device == "auto" else self.device
        first = re.split("[,:]", wanted)[0]
        if first:
            return {"cuda": "gpu", "rocm": "gpu"}.get(first, first)
        return "cpu" if self._on_host else "tpu" if Path("/dev/accel0").exists() else "gpu"

    @property
    def _on_host(self) -> bool:
        """Whether the device's memory is the host's, as far as can be told without JAX."""
        wanted = os.environ.get("JAX_PLATFORMS", "") if self.device == "auto" else self.device
        if wanted:
            return wanted.startswith("cpu")
        return not any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/accel0", "/dev/kfd"))

    def identity(self) -> dict[str, Any]:
        """See `pipeline.engine.Engine.identity`; imports JAX, which takes accelerators for its process alone: where
        others are to have them, one of their kind is asked, that ends."""
        if self.mesh.processes > 1 and self.platform != "cpu":
            with gang.started_by(here):
                found: Resolved = gang.run(Gang(1, "auto", _alone), partial(self.loader.resolve, self))
        else:
            found = self.loader.resolve(self)
        return {"device": found.device, "dtype": found.dtype, "cache": found.cache}

    def load(self, checkpoint: Checkpoint, *, plain: bool = False) -> Any:
        """A `plugins.engine.session.Model`.

        Args:
            checkpoint: whose model.
            plain: hold every tensor that is not packed as fp32, and compute in it.

        Raises:
            PlanError: config.json or the tensors do not fit the model; all problems at once.
            ConfigError: no such device.
        """
        return self.loader.load(replace(self, weights_dtype="f32", dtype="f32") if plain else self, checkpoint)


def _alone(rank: int, address: str, *, alone: bool) -> None:
    """Join nobody."""
