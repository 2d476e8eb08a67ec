"""NumPy and ml_dtypes, as one writes it first: a peer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import ml_dtypes
import numpy as np

from pipeline.bench.op import Case
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from plugins.bench.ops import sample


@dataclass(frozen=True)
class Plain:
    """See `pipeline.bench.op.Runner`."""

    @property
    def needs(self) -> Mapping[str, str]:
        return {}

    @property
    def unit(self) -> float:
        return 0.0

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("numpy", "ml_dtypes")}

    def given(self, result: Any) -> Any:
        return result

    def has(self, op: str) -> bool:
        return op in OPS

    def call(self, case: Case) -> Callable[[], Any] | str | None:
        return None if case.gradients else OPS[case.op](case)


def _matmul(case: Case) -> Callable[[], Any] | None:
    x, w = case.args
    return None if isinstance(w, QTensor) or w.dtype != np.float32 else lambda: x @ w.T


def _softmax(case: Case) -> Callable[[], Any]:
    [x] = case.args

    def softmax() -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    return softmax


def _rms_norm(case: Case) -> Callable[[], Any] | None:
    x, weight = case.args
    if x.dtype != np.float32:
        return None
    eps = np.float32(case.options["eps"])
    return lambda: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _quantize(case: Case) -> Callable[[], Any] | None:
    """MXFP4 by the floor rule, row by row: whole arrays are slower, and need gigabytes."""
    x, scheme = case.args
    if scheme != MXFP4:
        return None

    def quantize() -> QTensor:
        codes = np.empty((len(x), x.shape[1] // 2), np.uint8)
        scales = np.empty((len(x), x.shape[1] // 32), np.uint8)
        for i, row in enumerate(x):
            blocks = row.astype(np.float32).reshape(-1, 32)
            exponent = np.clip(np.frexp(np.abs(blocks).max(axis=1, keepdims=True))[1] - 3, -127, 127)
            c = np.ldexp(blocks, -exponent).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
            codes[i] = (c[:, 0::2] | c[:, 1::2] << 4).reshape(-1)
            scales[i] = (exponent + 127).reshape(-1)
        return QTensor(codes, scales, MXFP4)

    return quantize


def _dequantize(case: Case) -> Callable[[], Any] | None:
    [q] = case.args
    if q.scheme != MXFP4:
        return None

    def dequantize() -> Any:
        out = np.empty(q.shape, ml_dtypes.bfloat16)
        for i, (codes, scales) in enumerate(zip(q.codes, q.scales, strict=True)):
            c = np.stack([codes & 15, codes >> 4], axis=-1).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
            blocks = c.reshape(-1, 32)
            out[i] = np.ldexp(blocks, scales[:, None].astype(np.int32) - 127).reshape(-1)
        return out

    return dequantize


def _sample(case: Case) -> Callable[[], Any]:
    return lambda: sample.chosen(*case.args, **case.options)


OPS: Final[dict[str, Callable[[Case], Callable[[], Any] | None]]] = {
    "matmul": _matmul, "softmax": _softmax, "rms_norm": _rms_norm, "quantize": _quantize, "dequantize": _dequantize,
    sample.OP: _sample,
}  # fmt: skip
