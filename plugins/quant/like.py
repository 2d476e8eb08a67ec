"""What other libraries do, as recipes: so that codes agree with theirs bit for bit, where tests can show it.

Fields are filled in only where the user left them open; one that contradicts is an error, because then the codes would
be like nobody's.
"""

from typing import Any, Final, Literal

from pipeline.errors import ConfigError
from pipeline.tensors.scheme import Scheme
from plugins.kernels.codecs.elements import element

Like = Literal["torchao", "ggml", "compressed_tensors", "modelopt", "triton", "microxcaling", "qwix"]
_Fields = dict[str, Any]

# Power-of-two scales. torchao: mx_tensor.to_mx, FLOOR. ggml: quantize_row_mxfp4_ref. compressed-tensors:
# mxfp_utils.generate_mx_scales. ModelOpt: qtensor/mxfp4_tensor.py. Triton: triton_kernels' downcast_to_mxfp, rounding
# scales up. microxcaling: mx_ops.py, its default rounding "nearest" is half away. qwix: numerics.py.
_POWER: Final[dict[str, _Fields]] = {
    "torchao": {"scale_rule": "floor", "ties": "even", "zero": "signed", "tiny": "torchao"},
    "ggml": {"scale_rule": "floor", "ties": "zero", "zero": "positive", "tiny": "spec"},
    "compressed_tensors": {"scale_rule": "even", "ties": "even", "zero": "signed", "tiny": "spec"},
    "modelopt": {"scale_rule": "rceil", "ties": "zero", "zero": "minus", "tiny": "spec"},
    "triton": {"scale_rule": "rceil", "ties": "even", "zero": "signed", "tiny": "spec"},
    "microxcaling": {"scale_rule": "floor", "ties": "away", "zero": "signed", "tiny": "spec"},
    "qwix": {"scale_rule": "even", "ties": "even", "zero": "signed", "tiny": "spec"},
}
_DIVIDE: Final = {"ties": "even", "quotient": "divide", "codes_from": "stored"}
_GGML: Final = {"quotient": "reciprocal", "codes_from": "unrounded"}
DEFAULTS: Final[_Fields] = {
    "ties": "even", "zero": "signed", "tiny": "spec", "quotient": "divide", "codes_from": "stored",
    "least_scale": 0.0, "zero_scale": 0.0,
}  # fmt: skip


def _of(like: str, s: Scheme) -> _Fields | None:
    """The recipe of a library for a scheme; None where it has none that is known to agree."""
    if s.scale == "e8m0":
        return _POWER[like]
    family = element(s.element).family
    if like == "torchao" and (s.element, s.scale, s.second) in (("e2m1", "e4m3", "f32"), ("e2m1", "e4m3", None)):
        # nvfp4_tensor.nvfp4_quantize: scales at least the smallest normal of E4M3.
        return {
            "scale_rule": "amax",
            "ties": "even",
            "quotient": "reciprocal",
            "codes_from": "stored",
            "least_scale": 2.0**-6,
        }
    if like == "compressed_tensors":
        # helpers.calculate_qparams: a scale that would be 0 is the epsilon of its dtype.
        epsilon = {"e4m3": 0.125, "f32": 2.0**-23, "bf16": 2.0**-7, "f16": 2.0**-10}[s.scale]
        rule = "minmax" if s.zero == "int" else "half_range"
        return {**_DIVIDE, "scale_rule": rule, "zero_scale": epsilon} if s.zero != "min_f16" else None
    if like == "ggml" and s.scale == "f16":
        if s.element == "int8":  # quantize_row_q8_0_ref
            return {**_GGML, "scale_rule": "amax", "ties": "away"}
        if s.element == "int4":  # quantize_row_q4_0_ref
            return {**_GGML, "scale_rule": "signed", "ties": "up"}
        if s.zero == "min_f16":  # quantize_row_q4_1_ref
            return {**_GGML, "scale_rule": "minmax", "ties": "up"}
    if like == "qwix" and s.zero is None and family in ("fixed", "float"):
        return {**_DIVIDE, "scale_rule": "amax"}
    return None


def filled(like: str | None, given: _Fields, scheme: Scheme) -> _Fields:
    """`given` with every None replaced: by what `like` does, else by the default.

    Raises:
        ConfigError: a field that contradicts `like`, or a `like` that has no recipe for the scheme.
    """
    theirs: _Fields = {}
    if like is not None:
        found = _of(like, scheme)
        if found is None:
            raise ConfigError(f"like={like} is not known for {scheme.element} elements with {scheme.scale} scales")
        theirs = found
        for name, value in theirs.items():
            if given[name] not in (None, value):
                raise ConfigError(f"{name}={given[name]} contradicts like={like}, which is {name}={value}")
    rule = "floor" if scheme.scale == "e8m0" else "minmax" if scheme.zero is not None else "amax"
    defaults = {**DEFAULTS, "scale_rule": rule}
    return {n: v if v is not None else theirs.get(n, defaults.get(n)) for n, v in given.items()}
