"""Toy checkpoints whose sizes divide, in files as Hugging Face lays them out, and models of them over meshes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pipeline.coded_store import CodedStore
from pipeline.formats import Container, Dialect
from pipeline.mesh import Layout, Mesh, Parameter
from pipeline.planning.layout import lay_out
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.matrices import ExtremesOf
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.tensors.store import Index, TensorStore
from pipeline.tensors.store_view import StoreView
from pipeline.tensors.views import JoinedStore
from plugins.engine.load import fill, parameters
from plugins.formats.gpt_oss.dialect import GptOss
from plugins.formats.safetensors.hugging_face import HuggingFaceDialect
from plugins.mesh.devices import arrange
from plugins.mesh.library import preset
from plugins.models.common.weights import Weights
from plugins.models.device import device_spec
from plugins.models.family import family_of
from stages.export import Export
from stages.export_work import ExportWork
from tests.cases import model_runs
from tests.cases.quantized import write_folder

_ROPE = {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
_SHAPE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
    "num_hidden_layers": 2, "vocab_size": 320, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False, "dtype": "bfloat16", "num_experts_per_tok": 2, **_ROPE,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**_SHAPE, "model_type": "llama", "hidden_act": "silu"},
    "qwen3_moe": {**_SHAPE, "model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 256,
                  "norm_topk_prob": True},
    "gpt_oss": {**_SHAPE, "model_type": "gpt_oss", "num_local_experts": 4, "sliding_window": 16,
                "intermediate_size": 256, "layer_types": ["sliding_attention", "full_attention"]},
}  # fmt: skip


def parameters_of(config: Mapping[str, Any]) -> tuple[Parameter, ...]:
    """Of a model, by its family's table."""
    return family_of(config, model_runs.engine().families).parameters(config)


def specs(kind: str) -> dict[str, TensorSpec]:
    """Of every tensor of a toy."""
    found = parameters_of(CONFIGS[kind])
    return {name: TensorSpec(p.shape[1:] if p.stack else p.shape, "BF16") for p in found for name in p.names}


def write(folder: Path, kind: str) -> Path:
    """Random weights in safetensors."""
    rng = np.random.default_rng(len(kind))
    tensors = {n: rng.standard_normal(s.shape, "f4").astype(numpy_dtype(s.dtype)) for n, s in specs(kind).items()}
    dialect: Dialect = GptOss() if kind == "gpt_oss" else HuggingFaceDialect()
    write_folder(folder, dialect, tensors, CONFIGS[kind])
    return folder


def mesh(name: str, **axes: int) -> Mesh:
    """conf/mesh/`name`.yaml, with these sizes of its axes."""
    return replace(preset(name, **axes), replicated_most=1.0)


def layouts_of(mesh: Mesh, checkpoint: Checkpoint) -> dict[str, Layout]:
    """How a model lies; meshes are for models with experts and without."""
    found = parameters_of(checkpoint.config)
    used = {"batch", *(axis for p in found for axis in p.axes)}
    ruled = replace(mesh, rules={k: v for k, v in mesh.rules.items() if k in used})
    return lay_out(ruled, found, {n: device_spec(s) for n, s in checkpoint.store.specs.items()})


def export(
    given: Checkpoint,
    target: Path,
    dialect: Dialect,
    container: Container,
    dtype: Any = "keep",
    *,
    chunk_nbytes: int = 1 << 16,
) -> ExportWork:
    """What the stage does to write it; in chunks that are small enough to be many."""
    engine = model_runs.engine()
    stage = Export(dialect, container, engine.unpack, engine.cast, str(target), None, dtype)
    work = stage.run(Context(target.parent, chunk_nbytes=chunk_nbytes), given)
    assert isinstance(work, ExportWork)
    return work


@dataclass(frozen=True)
class Counting(StoreView):
    """Counts the bytes that were read, by tensor."""

    store: TensorStore
    read_bytes: dict[str, int] = field(default_factory=dict)

    def read(self, name: str, index: Index = ()) -> Any:
        value = self.store.read(name, index)
        self.read_bytes[name] = self.read_bytes.get(name, 0) + value.nbytes
        return value


def counted(store: TensorStore) -> tuple[TensorStore, dict[str, int]]:
    """The same store, which has seen nothing yet, and what is read of the leaves at its bottom."""
    if isinstance(store, JoinedStore):
        counting = Counting(store.leaves)
        return JoinedStore(counting, store.binding), counting.read_bytes
    if is_dataclass(store) and any(f.name == "store" for f in fields(store)):
        below, found = counted(store.store)  # type: ignore[attr-defined]
        seen = {"extremes": ExtremesOf()} if isinstance(store, CodedStore) else {}
        return replace(store, store=below, **seen), found
    counting = Counting(store)
    return counting, counting.read_bytes


def load(checkpoint: Checkpoint, mesh: Mesh | None = None) -> Any:
    """A model on one device, or on a mesh of the first few."""
    layouts = {} if mesh is None else layouts_of(mesh, checkpoint)
    engine = model_runs.engine()
    family = family_of(checkpoint.config, engine.families)
    weights = Weights(checkpoint.store.specs, layouts=layouts)
    model = family.build(checkpoint.config, weights, engine.ops.on("cpu"), "float32")
    read(model, checkpoint, mesh)
    return model


def read(model: Any, checkpoint: Checkpoint, mesh: Mesh | None = None, only: tuple[str, ...] = ()) -> None:
    """Fill a model, or those of its parameters that hold tensors named in `only`."""
    engine = model_runs.engine()
    where = jax.devices()[0] if mesh is None else arrange(mesh, jax.devices()[: mesh.size])
    fill(model, checkpoint, where, cast=engine.cast, unpack=engine.unpack, only=only)


def held(model: Any) -> dict[str, list[Any]]:
    """Parameter → its arrays, gathered."""
    return {p.names[0]: [np.asarray(a) for a in jax.tree.leaves(p.get_value())] for p in parameters(model)}
