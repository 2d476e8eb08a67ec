"""Small models of every family whose sizes divide, in memory, and what they run on: one device or a mesh of the first
few."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import ml_dtypes
import numpy as np

from pipeline.mesh import Mesh
from pipeline.ops import Kernel
from pipeline.planning.mesh_costs import exchanges
from pipeline.stage import Checkpoint
from pipeline.testing.memory import checkpoint as in_memory
from plugins.engine.engine import Engine
from plugins.engine.start import start
from plugins.formats.gpt_oss.dialect import GptOss
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from plugins.models.common.ops import Ops
from plugins.models.family import family_of
from tests.cases import model_runs
from tests.cases.quantized import write_folder
from tests.sharding import toys

VOCAB, LENGTH = 104, 9
_SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "rope_theta": 500.0,
}  # fmt: skip
_MOE = {"num_experts_per_tok": 5, "num_experts": 12, "moe_intermediate_size": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_SHAPE, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "smollm2": {**_SHAPE, "model_type": "llama", "tie_word_embeddings": True},
    "mistral": {**_SHAPE, "model_type": "mistral", "sliding_window": 7},
    "qwen2": {**_SHAPE, "model_type": "qwen2", "head_dim": 8},
    "qwen3": {**_SHAPE, "model_type": "qwen3", "attention_bias": True, "tie_word_embeddings": True},
    "qwen3_moe": {**_SHAPE, **_MOE, "model_type": "qwen3_moe", "norm_topk_prob": True, "mlp_only_layers": [1]},
    "gemma3": {**_SHAPE, "model_type": "gemma3_text", "sliding_window": 7, "sliding_window_pattern": 2,
               "final_logit_softcapping": 9.0, "rope_local_base_freq": 300.0, "query_pre_attn_scalar": 20},
    "gpt_oss": {**_SHAPE, "model_type": "gpt_oss", "num_local_experts": 12, "num_experts_per_tok": 5,
                "sliding_window": 7, "swiglu_limit": 2.0},
}  # fmt: skip
MOE = ("qwen3_moe", "gpt_oss")
TENSOR = {"heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "vocab": "tensor"}
MESHES = {
    "data": toys.mesh("data", data=2),
    "fsdp": toys.mesh("fsdp", fsdp=2),
    "tensor": toys.mesh("tensor", tensor=2),
    "fsdp_tensor": toys.mesh("fsdp_tensor"),
    "expert": toys.mesh("expert", expert=2),
    "data_expert": Mesh({"data": 2, "expert": 2}, {"batch": "data", "experts": "expert"}, {}, 1.0),
    "expert_tensor": Mesh({"expert": 2, "tensor": 2}, {"experts": "expert", **TENSOR}, {}, 1.0),
    "two_axes": Mesh({"a": 2, "b": 2}, {"vocab": ("a", "b"), "mlp": ("b", "a")}, {"a": ("heads",)}, 1.0),
}
NAMES = {"all_gather": "all-gather", "psum": "all-reduce", "psum_scatter": "reduce-scatter"}  # what XLA calls them
# Groups of int4 and int3 are as wide as rows of the toys, so that no device could have a part of a row.
OPTIONS = sorted({*model_runs.QUANTIZING} - {"int4", "int3"})
_FOLDER = TemporaryDirectory(prefix="models-")
IDS = np.random.default_rng(0).integers(0, VOCAB, (4, LENGTH)).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), IDS.shape)


def fitting(kind: str, name: str) -> bool:
    """Whether a mesh is for a model: experts are for those that have some."""
    return kind in MOE or "experts" not in MESHES[name].rules


@cache
def checkpoint(kind: str, vocab: int = VOCAB, layers: int = 2) -> Checkpoint:
    """Random weights, large enough that every part of the model shows: matrices bfloat16, the rest float32."""
    config = {**CONFIGS[kind], "vocab_size": vocab, "num_hidden_layers": layers}
    rng = np.random.default_rng(len(kind))
    plus_one, tied = kind == "gemma3", config.get("tie_word_embeddings", kind == "gemma3")
    tensors: dict[str, Any] = {}
    for parameter in family_of(config, engine().families).parameters(config):
        shape = parameter.shape[1:] if parameter.stack else parameter.shape
        for name in parameter.names:
            noise = rng.standard_normal(shape).astype(np.float32)
            if name.endswith("norm.weight"):
                tensors[name] = (0 if plus_one else 1) + 0.3 * noise
            elif len(shape) == 1 or "bias" in name:
                tensors[name] = 0.4 * noise
            else:
                size = 1.0 if "embed_tokens" in name and not tied else 1.5 / shape[-1] ** 0.5
                tensors[name] = (size * noise).astype(ml_dtypes.bfloat16)
    return in_memory(tensors, config=config)


@cache
def packed(kind: str, turn: int, layers: int = 2) -> Checkpoint:
    """The same with every matrix in another option of conf/quant; `turn` deals them out differently."""
    plain, folder = checkpoint(kind, layers=layers), Path(_FOLDER.name) / f"{kind}-{layers}"
    tensors = plain.store.tensors  # type: ignore[attr-defined]
    if not folder.exists():
        dialect = GptOss() if kind == "gpt_oss" else HuggingFaceDialect()
        write_folder(folder, dialect, tensors, {**plain.config, "dtype": "bfloat16"})
    matrices = [n for n in tensors if tensors[n].ndim > 1 and "bias" not in n]
    patterns = list(dict.fromkeys(re.sub(r"(?<=experts\.)\d+", "*", n) for n in matrices))  # those of a layer are alike
    dealt = {p: OPTIONS[(i + 5 * turn) % len(OPTIONS)] for i, p in enumerate(patterns)}
    rules = ", ".join(f"{{match: '{p}', to: {option}}}" for p, option in dealt.items())
    return model_runs.checkpoint(folder, quant="mxfp4", rules=f"[{rules}, {{match: '*', to: keep}}]")


@cache
def engine(*native: str) -> Engine:
    """In float32, with kernels in jnp, but for those ops that are named: they are native."""
    found = replace(model_runs.engine(), programs=None)
    ops = [Kernel(f.name, ("native",)) if f.name in native else getattr(found.ops, f.name) for f in fields(Ops)]
    return replace(found, ops=Ops(*ops))


def model(kind: str, mesh: Mesh | None = None, *native: str, of: Checkpoint | None = None, **options: Any) -> Any:
    """A `plugins.engine.session.Model`, on one device or on the first few."""
    of = checkpoint(kind) if of is None else of
    chosen = replace(engine(*native), **options)
    if mesh is None:
        return start(chosen, of)
    return start(replace(chosen, mesh=mesh), of, jax.devices()[: mesh.size])


@cache
def alone(kind: str, *native: str) -> Any:
    """The model on one device."""
    return model(kind, None, *native)


@cache
def logits(kind: str, *native: str) -> Any:
    """Of `IDS`, on one device."""
    return np.asarray(alone(kind, *native).runtime.forward(IDS, POSITIONS))


def apart(found: Any, expected: Any) -> float:
    """The largest difference, as a share of the largest value."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@dataclass(frozen=True)
class Collective:
    """One of a compiled program.

    Attributes:
        kind: as XLA calls it.
        dtype, shape: of its result.
        ways: devices that take part together.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    ways: int

    @property
    def sent(self) -> int:
        """Bytes that each device sends, around a ring."""
        bits = int(re.sub(r"\D", "", self.dtype.split("e")[0]) or 8)
        nbytes = int(np.prod(self.shape)) * bits // 8
        nbytes *= self.ways if self.kind == "reduce-scatter" else 2 if self.kind == "all-reduce" else 1
        return nbytes * (self.ways - 1) // self.ways


_KINDS = "all-reduce|all-gather|all-to-all|collective-permute|collective-broadcast|reduce-scatter"
_GROUPS = r"replica_groups=(?P<groups>mesh\[.*?\].*?\}|\S+)"
_ONE = re.compile(rf"= *(?P<shapes>\(.*?\)|\S+) (?P<kind>{_KINDS})(?:-start)?\(.*?{_GROUPS}")


def _ways(groups: str) -> int:
    """Devices of a group, in each of the ways that XLA writes them down."""
    if groups.startswith("mesh["):  # the sizes of axes, and then those (or factors of them) that take part
        sizes, taken = groups.split("]", 1)
        of = dict(re.findall(r"('\w+')=(\d+)", sizes))
        return math.prod(int(part or of[axis]) for axis, part in re.findall(r"('\w+')(?::\(\d+\)(\d+))?", taken))
    iota = re.match(r"\[\d+,(\d+)\]", groups)
    return int(iota[1]) if iota else len(re.match(r"\{\{([\d,]*)", groups)[1].split(","))  # type: ignore[index]


def collectives(program: Any) -> Iterator[Collective]:
    """Of a compiled program, as it was optimized."""
    for found in _ONE.finditer(program.as_text()):
        groups = found["groups"]
        ways = _ways(groups)
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", found["shapes"]):
            yield Collective(found["kind"], dtype, tuple(map(int, filter(None, shape.split(",")))), ways)


def planned(model: Any, tokens: int) -> dict[str, int]:
    """Kind of collective → bytes that each device sends where logits of so many tokens are computed, by the plan."""
    p = model._engine.placement(model._checkpoint)
    found: Counter[str] = Counter()
    for e in exchanges(p.mesh, p.parameters, p.specs, p.layouts, tokens=tokens, predicted=tokens, activation_nbytes=4):
        found[NAMES[e.kind]] += e.nbytes
    return found


def programs(runtime: Any, name: str) -> list[Any]:
    """Those compiled under a name."""
    return [program for key, program in runtime._programs.items() if key[0] == name]


def sent(program: Any) -> Mapping[str, int]:
    """Kind of collective → bytes that each device sends; of single numbers nothing is said."""
    found: Counter[str] = Counter()
    for one in collectives(program):
        found[one.kind] += one.sent if one.shape else 0
    return found
