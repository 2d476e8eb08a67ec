"""torch, and torchao for MXFP4: a peer."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from pipeline.bench.op import Case
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.scheme import MXFP4
from plugins.bench.ops import sample

PACKAGES = ("torch", "torchao")


@dataclass(frozen=True)
class Torch:
    """See `pipeline.bench.op.Runner`."""

    @property
    def needs(self) -> Mapping[str, str]:
        return dict.fromkeys(PACKAGES, "pip install torch torchao")

    @property
    def unit(self) -> float:
        return 0.0

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in PACKAGES}

    def call(self, case: Case) -> Callable[[], Any] | str | None:
        import torch

        if case.gradients:
            return None
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        torch.set_grad_enabled(False)
        return OPS[case.op](case)

    def has(self, op: str) -> bool:
        return op in OPS

    def given(self, result: Any) -> Any:
        return result if isinstance(result, QTensor) else _array(result)


def _tensor(array: Any) -> Any:
    """Of the same values, without a copy where NumPy has the type."""
    import torch

    array = np.array(array)  # which may be written, as torch wants it
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> Any:
    import ml_dtypes
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _matmul(case: Case) -> Callable[[], Any] | None:
    import torch

    x, w = case.args
    return None if isinstance(w, QTensor) else partial(torch.nn.functional.linear, _tensor(x), _tensor(w))


def _softmax(case: Case) -> Callable[[], Any]:
    import torch

    return partial(torch.softmax, _tensor(case.args[0]), -1)


def _rms_norm(case: Case) -> Callable[[], Any]:
    import torch

    x, weight = map(_tensor, case.args)
    return partial(torch.nn.functional.rms_norm, x, weight.shape, weight, case.options["eps"])


def _embed(case: Case) -> Callable[[], Any] | None:
    import torch

    ids, w = case.args
    if isinstance(w, QTensor) or w.dtype != case.options["dtype"]:
        return None
    return partial(torch.nn.functional.embedding, _tensor(ids).long(), _tensor(w))


def _attention(case: Case) -> Callable[[], Any] | None:
    """scaled_dot_product_attention, which knows no sinks, and windows by a mask only."""
    import torch

    q, k, v, at, _ = case.args
    if "sinks" in case.options or "window" in case.options:
        return None
    arrays = [_tensor(a).transpose(1, 2).contiguous() for a in (q, k, v)]
    scale, causal = case.options["scale"], at.shape[1] > 1
    call = partial(
        torch.nn.functional.scaled_dot_product_attention, *arrays, is_causal=causal, enable_gqa=True, scale=scale
    )
    return lambda: call().transpose(1, 2)


def _moe(case: Case) -> Callable[[], Any] | None:
    """Expert by expert, as transformers does it."""
    import torch

    x, chosen, share, (both,), _, out, _ = case.args
    if isinstance(both, QTensor):
        return None
    tx, w_in, w_out = _tensor(x), _tensor(both), _tensor(out)
    where = {int(e): torch.from_numpy(np.nonzero(chosen == e)[0]) for e in np.unique(chosen)}
    each = float(share[0, 0])

    def moe() -> Any:
        y = torch.zeros(tx.shape, dtype=torch.float32)
        for e, rows in where.items():
            values = torch.nn.functional.linear(tx[rows], w_in[e])
            gate, up = values[..., ::2].clamp(max=7), values[..., 1::2].clamp(-7, 7)
            hidden = gate * torch.sigmoid(1.702 * gate) * (up + 1)
            y.index_add_(0, rows, torch.nn.functional.linear(hidden, w_out[e]).float(), alpha=each)
        return y.to(tx.dtype)

    return moe


def _quantize(case: Case) -> Callable[[], Any] | None:
    """torchao's conversion to MXFP4."""
    x, scheme = case.args
    if scheme != MXFP4:
        return None
    import torch
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    given = _tensor(x)

    def quantize() -> QTensor:
        scales, codes = to_mx(given, torch.float4_e2m1fn_x2, 32)
        return QTensor(codes.view(torch.uint8).numpy(), scales.view(torch.uint8).numpy(), MXFP4)

    return quantize


def _dequantize(case: Case) -> Callable[[], Any] | None:
    [q] = case.args
    if q.scheme != MXFP4:
        return None
    import torch
    from torchao.prototype.mx_formats.mx_tensor import to_dtype

    codes = _tensor(q.codes)
    scales = _tensor(q.scales).view(torch.float8_e8m0fnu)
    return partial(to_dtype, codes, scales, torch.float4_e2m1fn_x2, 32, torch.bfloat16)


def _sample(case: Case) -> Callable[[], Any]:
    """As transformers' processors of logits filter: the likeliest k, and of these the fewest that reach p."""
    import torch

    if not case.options:
        logits = _tensor(case.args[0])
        return lambda: torch.argmax(logits, dim=-1).to(torch.int32)
    logits, noise = map(_tensor, case.args)
    top_k, top_p = int(case.options["top_k"]), case.options["top_p"]

    def choose() -> Any:
        values, tokens = torch.topk(logits, top_k, dim=-1)
        share = torch.softmax(values, dim=-1)
        dropped = torch.cumsum(share, dim=-1) - share >= top_p
        best = (values + noise.gather(-1, tokens)).masked_fill(dropped, -torch.inf).argmax(dim=-1, keepdim=True)
        return tokens.gather(-1, best)[:, 0].to(torch.int32)

    return choose


OPS: Final[dict[str, Callable[[Case], Callable[[], Any] | None]]] = {
    "matmul": _matmul, "softmax": _softmax, "rms_norm": _rms_norm, "attention": _attention, "moe": _moe,
    "embed": _embed, "quantize": _quantize, "dequantize": _dequantize, sample.OP: _sample,
}  # fmt: skip
