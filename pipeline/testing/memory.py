"""Checkpoints in memory, random boxes and bit-for-bit comparison: what the contract suites feed and judge with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.stage import Checkpoint
from pipeline.tensors.blocks import component_box, each, part_of
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4, STRUCT_HALVES, STRUCTS, Scheme
from pipeline.tensors.spec import TensorSpec, dtype_name, numpy_dtype
from pipeline.tensors.store import Index, normalize

Box = tuple[slice, ...]

# Every dimension is another number, so that no transposition can hide; with a scalar and an integer among them.
EXAMPLE = {
    "model.embed_tokens.weight": TensorSpec((37, 64), "BF16"),
    "model.layers.0.input_layernorm.weight": TensorSpec((64,), "BF16"),
    "model.layers.0.self_attn.q_proj.weight": TensorSpec((48, 64), "F32"),
    "model.layers.0.self_attn.q_proj.bias": TensorSpec((48,), "F16"),
    "model.layers.0.mlp.experts.gate_up_proj": TensorSpec((3, 10, 96), "BF16"),
    "model.layers.0.mlp.experts.down_proj": TensorSpec((3, 5, 128), "BF16"),
    "model.layers.0.temperature": TensorSpec((), "F32"),
    "model.position_ids": TensorSpec((7,), "I64"),
}


@dataclass(frozen=True)
class MemoryStore:
    """Arrays and QTensors by name, as a `TensorStore`."""

    tensors: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        return {name: spec_of(value) for name, value in self.tensors.items()}

    def read(self, name: str, index: Index = ()) -> Any:
        return cut(self.tensors[name], index)


def checkpoint(tensors: Mapping[str, Any] | None = None, **more: Any) -> Checkpoint:
    """A checkpoint of arrays and QTensors, by default one that looks like a small model's.

    Args:
        tensors: logical name → array or QTensor.
        more: other fields of `Checkpoint`.
    """
    return Checkpoint(MemoryStore(example() if tensors is None else tensors), **more)


def example(seed: int = 0, packed: bool = False) -> dict[str, Any]:
    """Tensors of the specs in `EXAMPLE`; with `packed`, the last expert matrix comes as MXFP4."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for name, spec in EXAMPLE.items():
        values = rng.integers(0, 100, spec.shape) if spec.dtype == "I64" else rng.standard_normal(spec.shape)
        found[name] = np.asarray(values).astype(numpy_dtype(spec.dtype))
    if packed:
        name = "model.layers.0.mlp.experts.down_proj"
        found[name] = random_qtensor(EXAMPLE[name].shape, MXFP4, rng)
    return found


def random_qtensor(shape: tuple[int, ...], scheme: Scheme, rng: np.random.Generator) -> QTensor:
    """Random bytes in the form of `scheme`, which is to have E8M0 scales; those are near 1."""
    shapes = scheme.components(shape)
    codes = rng.integers(0, 256, shapes["codes"], dtype=np.uint8)
    return QTensor(codes, rng.integers(120, 132, shapes["scales"], dtype=np.uint8), scheme)


def random_bytes(spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """An array of `spec`'s dtype and of `shape` with random bits: NaNs, infinities and −0 among them."""
    dtype = numpy_dtype(spec.dtype)
    count = int(np.prod(shape))
    if spec.dtype == "BOOL":
        return rng.integers(0, 2, shape).astype(dtype)
    return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).reshape(shape)


def random_boxes(spec: TensorSpec, rng: np.random.Generator, count: int = 8) -> list[Box]:
    """The whole, and random non-empty boxes of a tensor; whole blocks where it is packed."""
    whole = tuple(slice(0, n) for n in spec.shape)
    if not spec.size or not spec.shape or (spec.scheme is not None and spec.scheme.whole_only):
        return [whole]
    steps = [1] * len(spec.shape)
    if spec.scheme is not None:
        steps[-1] = spec.scheme.column_grain if spec.scheme.block_elems else spec.shape[-1]
        if len(steps) > 1:
            steps[-2] = spec.scheme.block_rows or spec.shape[-2]
    found = [whole]
    for _ in range(count):
        box = []
        for n, step in zip(spec.shape, steps, strict=True):
            start, stop = sorted(rng.choice(-(-n // step) + 1, 2, replace=False).tolist())
            box.append(slice(start * step, min(stop * step, n)))
        found.append(tuple(box))
    return found


def spec_of(value: Any) -> TensorSpec:
    """The spec of an array or QTensor (which decodes to BF16)."""
    if isinstance(value, QTensor):
        return TensorSpec(value.shape, "BF16", value.scheme)
    return TensorSpec(value.shape, dtype_name(value.dtype))


def cut(value: Any, index: Index) -> Any:
    """A copy of a box of an array or QTensor."""
    if not isinstance(value, QTensor):
        return np.array(value[normalize(index, tuple(value.shape))])
    return each(part_of(value, index), np.array)


def same(a: Any, b: Any) -> bool:
    """Bit for bit equality of arrays or QTensors; −0 differs from 0 and NaN equals itself."""
    if isinstance(a, QTensor) and isinstance(b, QTensor):
        names = a.components.keys() | b.components.keys()
        return a.scheme == b.scheme and all(same(a.components.get(n), b.components.get(n)) for n in names)
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return a.tobytes() == b.tobytes()


def holds(value: Any, spec: TensorSpec, index: Index) -> str | None:
    """What is wrong with `value` as the box `index` of a tensor of `spec`, or None."""
    want = tuple(s.stop - s.start for s in normalize(index, spec.shape))
    if tuple(value.shape) != want:
        return f"has shape {tuple(value.shape)}, the spec promises {want}"
    if isinstance(value, QTensor) or spec.scheme is not None:
        given = getattr(value, "scheme", None)
        if given != spec.scheme:
            return f"has scheme {given}, the spec promises {spec.scheme}"
        shapes = {c: tuple(a.shape) for c, a in value.components.items()}
        boxes = {c: component_box(spec, c, index) for c in spec.scheme.components(spec.shape)} if spec.scheme else {}
        promised = {c: tuple(s.stop - s.start for s in box) for c, box in boxes.items()}
        return None if shapes == promised else f"has components {shapes}, the scheme promises {promised}"
    if not isinstance(value, np.ndarray) or value.dtype != numpy_dtype(spec.dtype):
        return f"is {getattr(value, 'dtype', type(value).__name__)}, the spec promises {spec.dtype}"
    return None


def quantized(scheme: Scheme, shape: tuple[int, ...], seed: int = 0) -> QTensor:
    """Random codes, all of them likely; scales and second scales that are finite and not far from 1."""
    rng = np.random.default_rng(seed)
    shapes, found = scheme.components(shape), {}
    found["codes"] = rng.integers(0, 256, shapes["codes"], dtype=np.uint8)
    if scheme.is_struct:
        _finite_factors(scheme, found["codes"], rng)
    if scheme.element == "e4m3":
        found["codes"][found["codes"] & 0x7F == 0x7F] ^= 1  # NaN
    for name, dims in shapes.items():
        dtype = numpy_dtype(scheme.dtypes[name])
        if name == "zeros":
            found[name] = rng.integers(0, 1 << scheme.element_bits, dims).astype(dtype)
        elif name != "codes":
            whole = dtype == np.uint8
            found[name] = (rng.integers(118, 130, dims) if whole else rng.uniform(0.25, 4, dims)).astype(dtype)
    return QTensor(scheme=scheme, **found)


def _finite_factors(scheme: Scheme, codes: Any, rng: np.random.Generator) -> None:
    """Factors near 1 in place of those of random bytes."""
    blocks = codes.reshape(-1, STRUCTS[scheme.element][1])
    for at in STRUCT_HALVES[scheme.element]:
        blocks[:, at : at + 2] = rng.uniform(0.25, 4, (len(blocks), 1)).astype(np.float16).view(np.uint8)
