"""What other libraries do, as recipes: so that codes agree with theirs bit for bit, where tests can show it.

Fields are filled in only where the user left them open; one that contradicts is an error, because then the codes would
be like nobody's. A scheme that a library does not have, or makes by a rule that is not one of ours, is refused.
"""

from typing import Any, Final, Literal, get_args

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import element

Like = Literal["torchao", "ggml", "compressed_tensors", "modelopt", "triton", "microxcaling", "qwix"]
_Fields = dict[str, Any]

# Power-of-two scales: the elements that a library has, and what it does with them.
# - torchao: mx_tensor.to_mx, FLOOR. ggml: quantize_row_mxfp4_ref.
# - compressed-tensors: mxfp_utils.generate_mx_scales. Its E4M3 rounds amax as for E2M1, at 1.75, which is no rule here.
# - ModelOpt: qtensor/mxfp4_tensor.py and mxfp8_tensor.py, `ceil(log2(amax / max))`.
# - Triton: triton_kernels' downcast_to_mxfp_torch, ROUND_UP, ties to even. Where amax / max is subnormal it stores byte
#   1, and the least scale that holds amax is byte 0.
# - microxcaling: mx_ops._quantize_mx, whose "nearest" is floor(|v| + 1/2). It makes values: a -0 comes out as +0. A
#   float32 amax just below a power of two may be taken for it (log2 in float32; not where amax is a bfloat16).
# - qwix: qarray.compute_scale_zero_point since 901efed; for float32 input it rounds amax / 3.5 down after a detour
#   through bfloat16, which for weights that are bfloat16 is `even`. 0.1.8 and before had rceil. A block with amax below
#   6 · 2^-63 gets scale 1, hence a zero block byte 127. Its E4M3 goes up at 1.81, which is no rule here.
_POWER: Final[dict[str, dict[tuple[str, ...], _Fields]]] = {
    "torchao": {
        ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2"): {
            "scale_rule": "floor",
            "ties": "even",
            "zero": "signed",
            "tiny": "torchao",
        },
    },
    "ggml": {("e2m1",): {"scale_rule": "floor", "ties": "zero", "zero": "positive", "tiny": "spec"}},
    "compressed_tensors": {
        ("e2m1", "e2m3"): {"scale_rule": "even", "ties": "even", "zero": "signed", "tiny": "spec"},
    },
    "modelopt": {
        ("e2m1",): {"scale_rule": "rceil", "ties": "zero", "zero": "minus", "tiny": "spec"},
        ("e4m3",): {"scale_rule": "rceil", "ties": "even", "zero": "signed", "tiny": "spec"},
    },
    "triton": {
        ("e2m1", "e4m3", "e5m2"): {"scale_rule": "rceil", "ties": "even", "zero": "signed", "tiny": "spec"},
    },
    "microxcaling": {
        ("e2m1", "e2m3", "e3m2", "e4m3", "e5m2", "mxint8"): {
            "scale_rule": "floor",
            "ties": "away",
            "zero": "signed",
            "tiny": "spec",
        },
    },
    "qwix": {("e2m1",): {"scale_rule": "even", "ties": "even", "zero": "signed", "tiny": "spec"}},
}
_DIVIDE: Final = {"ties": "even", "quotient": "divide", "codes_from": "stored"}
_GGML: Final = {"quotient": "reciprocal", "codes_from": "unrounded"}
DEFAULTS: Final[_Fields] = {
    "ties": "even", "zero": "signed", "tiny": "spec", "quotient": "divide", "codes_from": "stored",
    "least_scale": 0.0, "zero_scale": 0.0, "zero_block": "least",
}  # fmt: skip


def _of(like: str, s: Scheme) -> _Fields | None:
    """The recipe of a library for a scheme; None where it has none that is known to agree."""
    if s.scale == "e8m0":
        return next((fields for elements, fields in _POWER[like].items() if s.element in elements), None)
    nvfp4 = (s.element, s.scale) == ("e2m1", "e4m3")
    if like == "torchao" and nvfp4 and s.second in ("f32", None):
        # nvfp4_tensor.nvfp4_quantize: scales at least the smallest normal of E4M3.
        return {**_DIVIDE, "scale_rule": "amax", "quotient": "reciprocal", "least_scale": 2.0**-6}
    if like == "triton" and nvfp4 and s.second is None:
        # downcast_to_mxfp_torch with E4M3 scales: one level, times the reciprocal.
        return {**_DIVIDE, "scale_rule": "amax", "quotient": "reciprocal"}
    if like == "compressed_tensors" and s.zero != "min_f16" and s.second != "f32":
        # helpers.calculate_qparams: a scale that would be 0 is the epsilon of its dtype.
        epsilon = {"e4m3": 0.125, "f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}.get(s.scale)
        if epsilon is not None and element(s.element).family != "table":
            if s.zero == "int":  # 0 / 0 is NaN, and that the integer 0, which is halfway up its signed codes
                return {**_DIVIDE, "scale_rule": "minmax", "zero_scale": epsilon, "zero_block": "middle"}
            return {**_DIVIDE, "scale_rule": "half_range", "zero_scale": epsilon}
    if like == "ggml" and s.scale == "f16":
        if s.element == "int8":  # quantize_row_q8_0_ref
            return {**_GGML, "scale_rule": "amax", "ties": "away"}
        if s.element == "int4":  # quantize_row_q4_0_ref
            return {**_GGML, "scale_rule": "signed", "ties": "up"}
        if s.zero == "min_f16":  # quantize_row_q4_1_ref
            return {**_GGML, "scale_rule": "minmax", "ties": "up"}
    return _qwix(s) if like == "qwix" and s.second is None else None


def _qwix(s: Scheme) -> _Fields | None:
    """qarray.compute_scale_zero_point and numerics.get_symmetric_bound: integers reach half a step past their largest.

    Scales that would be 0 are 1. They are computed in the weights' dtype and cast when the codes are made already. XLA
    may multiply by the reciprocal of the bound where it says to divide, so float32 scales agree to their last bit only.
    """
    family = element(s.element).family
    recipe = {**_DIVIDE, "zero_scale": 1.0, "codes_from": "stored" if s.scale in ("f32", "e4m3") else "unrounded"}
    if s.scale == "e4m3":
        return {**recipe, "scale_rule": "amax"} if s.element == "e2m1" else None
    if s.zero == "int":
        return {**recipe, "scale_rule": "minmax"} if s.element in ("uint8", "uint4") else None
    rules = {"fixed": "half_range", "float": "amax", "table": "amax"}
    if s.zero is not None or family not in rules or s.element == "mxint8":
        return None
    return {**recipe, "scale_rule": rules[family], "ties": "down" if family == "table" else "even"}


def filled(like: str | None, given: _Fields, scheme: Scheme) -> _Fields:
    """`given` with every None replaced: by what `like` does, else by the default.

    Raises:
        ConfigError: a field that contradicts `like`, or a `like` that has no recipe for the scheme.
    """
    theirs: _Fields = {}
    if like is not None:
        found = _of(like, scheme)
        if found is None:
            known = [name for name in get_args(Like) if _of(name, scheme) is not None]
            raise ConfigError(
                f"like={like} is not known for {scheme.element} elements with {scheme.scale} scales"
                f"{'' if scheme.second is None else f' and second={scheme.second}'}"
                f"; {', '.join(known) or 'no library'} {'is' if len(known) < 2 else 'are'}"
            )
        theirs = found
        for name, value in theirs.items():
            if given[name] not in (None, value):
                raise ConfigError(f"{name}={given[name]} contradicts like={like}, which is {name}={value}")
    rule = "floor" if scheme.scale == "e8m0" else "minmax" if scheme.zero is not None else "amax"
    defaults = {**DEFAULTS, "scale_rule": rule}
    return {n: v if v is not None else theirs.get(n, defaults.get(n)) for n, v in given.items()}
