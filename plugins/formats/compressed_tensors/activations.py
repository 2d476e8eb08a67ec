"""compressed-tensors: `QuantizationArgs` of activations, and what they mean as a `Scheme`, both directions."""

from collections.abc import Mapping
from typing import Any

from pipeline.tensors.scheme import MXFP4, Scheme
from plugins.formats.compressed_tensors.schemes import MXFP8, NVFP4

FP4 = {
    "num_bits": 4, "type": "float", "symmetric": True, "group_size": 16, "strategy": "tensor_group", "dynamic": "local",
    "scale_dtype": "torch.float8_e4m3fn",
}  # fmt: skip


def input_arguments(scheme: Scheme) -> dict[str, Any]:
    """`QuantizationArgs` of activations whose scales are made when a row is seen, each row by itself.

    Raises:
        ValueError: readers have no such; says what they have.
    """
    token = {"num_bits": scheme.element_bits, "symmetric": True, "dynamic": True}
    if scheme.zero is None and scheme.second is None and not scheme.block_elems:
        if scheme.element == "int8":
            return {**token, "type": "int", "strategy": "token", "group_size": None}
        if scheme.element == "e4m3":
            return {**token, "type": "float", "strategy": "token", "group_size": None}
    if scheme in (MXFP4, MXFP8):
        return {**token, "type": "float", "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
    if scheme.second is not None:
        text = "under a second-level scale need one that was calibrated (input_global_scale)"
        raise ValueError(f"activations {text}: activations_scales=calibrated calibrate=absmax")
    raise ValueError("activations are int8, fp8_e4m3, mxfp8_e4m3 or mxfp4 for readers of compressed-tensors")


def static_arguments(scheme: Scheme) -> dict[str, Any]:
    """Of activations under calibrated scales.

    Raises:
        ValueError: readers have no such; says what they have.
    """
    if scheme == NVFP4:
        return dict(FP4)
    kinds = {"int8": "int", "e4m3": "float"}
    if scheme.second is not None or scheme.element not in kinds:
        text = (
            "activations under calibrated scales are int8, fp8_e4m3, or nvfp4 with second=inverse_f32, for readers of"
        )
        raise ValueError(f"{text} compressed-tensors")
    kind = kinds[scheme.element]
    return {
        "num_bits": 8, "type": kind, "symmetric": True, "group_size": None, "strategy": "tensor", "dynamic": False
    }  # fmt: skip


def input_scheme(args: Mapping[str, Any] | None) -> Scheme | None:
    """Of activations whose scales a checkpoint has; None: they are made when rows are seen, or mean nothing here."""
    if not args or not args.get("symmetric", True):
        return None
    bits, kind, strategy = args.get("num_bits", 8), str(args.get("type", "int")).lower(), args.get("strategy")
    if (bits, kind, args.get("group_size"), args.get("dynamic")) == (4, "float", 16, "local"):
        return NVFP4
    if bits == 8 and args.get("dynamic", False) is False and strategy in ("tensor", None):
        return Scheme("int8" if kind == "int" else "e4m3", 0, "f32", block_rows=0)
    return None


def input_option(args: Mapping[str, Any] | None) -> str | None:
    """The quant option of activations whose scales are made when rows are seen; None: there are no such."""
    if not args or args.get("dynamic", False) is not True:
        return None
    bits, kind, group = args.get("num_bits", 8), str(args.get("type", "int")).lower(), args.get("group_size")
    mx = {(8, "float"): "mxfp8_e4m3", (4, "float"): "mxfp4"} if group == 32 else {}
    return mx.get((bits, kind)) or {"int": f"int{bits}", "float": "fp8_e4m3"}.get(kind, kind)
