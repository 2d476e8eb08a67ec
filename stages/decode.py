"""Decode: every floating-point tensor arrives as bf16; what is already quantized stays packed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.errors import ValueRangeError
from pipeline.ops import Call, Kernel
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.store import Index
from pipeline.tensors.views import MappedStore

WIDE = frozenset({"F16", "F32", "F64"})  # bf16 itself passes untouched, whatever its bits


@dataclass(frozen=True)
class Decode:
    """View wide floats as bf16 (round to nearest even); bf16, integers and packed tensors pass bit for bit.

    Attributes:
        dtype: `bf16`, or `keep` to leave every tensor as it is stored.
        cast: the cast kernel.
    """

    cast: Kernel
    dtype: Literal["bf16", "keep"] = "bf16"

    def run(self, ctx: Context, checkpoint: Checkpoint) -> Checkpoint:
        specs = checkpoint.store.specs
        packed = {n: f"{s.encoding} of {s.dtype}" for n, s in specs.items() if s.dtype in WIDE and s.scheme is not None}
        if self.dtype == "keep":
            return replace(checkpoint, rounded=packed) if packed else checkpoint
        # GGUF has vectors in float32 whatever they were before: only of matrices does the dtype say what is lost
        rounded = {n: s.dtype for n, s in specs.items() if s.dtype in WIDE and s.scheme is None and len(s.shape) > 1}
        return replace(checkpoint, store=MappedStore(checkpoint.store, AsBf16(self.cast)), rounded=rounded | packed)

    def calls(self, checkpoint: Checkpoint) -> Iterator[Call]:
        """The kernel calls that reading the result makes."""
        for name, spec in checkpoint.store.specs.items() if self.dtype != "keep" else ():
            if spec.dtype in WIDE and spec.scheme is None:
                yield Call(self.cast, name, {"x": spec, "dtype": "BF16"})


@dataclass(frozen=True, slots=True)
class AsBf16:
    cast: Kernel

    def spec(self, name: str, spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype="BF16") if spec.dtype in WIDE else spec

    def apply(self, name: str, value: Any, index: Index) -> Any:
        wide = not isinstance(value, QTensor) and value.dtype.kind == "f" and value.dtype.itemsize in (2, 4, 8)
        if not wide or value.dtype.name not in ("float16", "float32", "float64"):
            return value
        try:
            return self.cast(value, "BF16")
        except ValueRangeError as why:
            at = ",".join(f"{s.start}:{s.stop}" for s in index)
            where = f"{name}[{at}]" if at else name
            raise ValueRangeError(f"{where}: {why}; stages.decode.dtype=keep leaves tensors as they are") from None
