"""compressed-tensors: what its weight arguments mean as a `Scheme`, and where a matrix of each format lies.

Both directions of one table. Formats and leaves: the compressors of compressed-tensors 0.20 (`compressors/*/base.py`);
arguments: its `QuantizationArgs`.

    format                 leaves of MODULE, for a matrix [out, in]
    mxfp4-pack-quantized   weight_packed U8 [out, in/2], weight_scale U8 (E8M0) [out, in/32]
    nvfp4-pack-quantized   weight_packed U8 [out, in/2], weight_scale F8_E4M3 [out, in/16], weight_global_scale F32 [1]
    mxfp6-pack-quantized   weight_packed U8 [out, in·6/8] of E2M3, weight_scale U8 (E8M0) [out, in/32]
    mxfp8-quantized        weight F8_E4M3 [out, in], weight_scale U8 (E8M0) [out, in/32]
    pack-quantized         weight_packed I32 [out, ceil(in·bits/32)], weight_scale, weight_shape I64 [2],
                           weight_zero_point I32 [ceil(out·bits/32), blocks] when asymmetric
    int-quantized          weight I8 [out, in], weight_scale, weight_zero_point I8 like the scale when asymmetric
    float-quantized        weight F8_E4M3 [out, in], weight_scale

A weight_scale of the last three is BF16, F16 or F32: [1] for strategy tensor, [out, 1] for channel, [out, in/group] for
group, [ceil(out/rows), in/columns] for block. `weight_global_scale` divides: it is the reciprocal of a scale.
"""

from collections.abc import Mapping
from typing import Any

from pipeline.tensors.binding import Part
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Step
from plugins.facts.dtypes import SCALES
from plugins.formats.common.packings import Bytes, Single, Words, WordsDown

NVFP4 = Scheme("e2m1", 16, "e4m3", second="inverse_f32")
MXFP6 = Scheme("e2m3", 32, "e8m0")
MXFP8 = Scheme("e4m3", 32, "e8m0")
FIXED = {
    "mxfp4-pack-quantized": MXFP4,
    "nvfp4-pack-quantized": NVFP4,
    "mxfp6-pack-quantized": MXFP6,
    "mxfp8-quantized": MXFP8,
}
FORMATS = (*FIXED, "pack-quantized", "int-quantized", "float-quantized")
INTS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (2, 3, 4, 8)}
SIGN = 0x80


def format_of(scheme: Scheme, int8: str) -> str:
    """The format that holds `scheme`; `int8` is the one for 8-bit integers.

    Raises:
        ValueError: none does; says why and what is allowed.
    """
    for name, only in FIXED.items():
        if scheme == only:
            return name
    if scheme.element == "e2m1" and scheme.second == "f32":
        raise ValueError(
            "weight_global_scale is the reciprocal of a second-level scale (second=inverse_f32): the same values "
            "in other bytes, and not always the same; quantize with quant.second=inverse_f32, or export=modelopt"
        )
    wide = scheme.scale in SCALES.values() and scheme.second is None
    integer = scheme.element in INTS and scheme.zero in (None, "int") and wide
    strategy = _strategy(scheme) if wide else ""
    if scheme.element == "e4m3" and wide:
        return "float-quantized"
    name = int8 if scheme.element in ("int8", "uint8") else "pack-quantized"
    if integer and scheme.zero is not None and strategy not in ("group", "channel"):
        raise ValueError("zero points are held for strategies group and channel, that is, for block_rows=1")
    if integer and name == "pack-quantized" and strategy == "block":
        raise ValueError("pack-quantized has scales of a tensor, a row or a group of a row, not of tiles of rows")
    if integer:
        return name
    allowed = "e2m1/32/e8m0, e2m1/16/e4m3/inverse_f32, e2m3/32/e8m0, e4m3/32/e8m0, and int2…int8, uint2…uint8 and e4m3"
    raise ValueError(f"compressed-tensors has no format for it (allowed: {allowed} with scales in bf16, f16 or f32)")


def arguments(scheme: Scheme) -> dict[str, Any]:
    """`QuantizationArgs` of the weights, as the library serializes them."""
    strategy = _strategy(scheme)
    out: dict[str, Any] = {
        "num_bits": scheme.element_bits,
        "type": "int" if scheme.element in INTS else "float",
        "symmetric": scheme.zero is None,
        "group_size": scheme.block_elems if "group" in strategy else None,
        "strategy": strategy,
        "dynamic": False,
    }
    if strategy == "block":
        out["block_structure"] = [scheme.block_rows, scheme.block_elems]
    if scheme.scale in ("e8m0", "e4m3"):
        out["scale_dtype"] = {"e8m0": "torch.uint8", "e4m3": "torch.float8_e4m3fn"}[scheme.scale]
    return out


def scheme_of(args: Mapping[str, Any], fmt: str, scale_dtype: str) -> Scheme:
    """The scheme that weight arguments mean in a format, for a weight_scale of `scale_dtype`.

    Raises:
        ValueError: arguments that the format does not have, or that say something no scheme does.
    """
    bits, kind = args.get("num_bits", 8), str(args.get("type", "int")).lower()
    if args.get("dynamic"):
        raise ValueError(f"weights with dynamic={args['dynamic']!r} have no scales to read")
    if str(args.get("actorder")).lower() in ("group", "dynamic", "true"):
        raise ValueError(f"actorder={args['actorder']!r} reorders columns (weight_g_idx), which no scheme says")
    rows, columns = _block(args)
    symmetric = args.get("symmetric", True)
    if fmt in FIXED:
        only = FIXED[fmt]
        given = (bits, kind, rows, columns, symmetric)
        if given != (want := (only.element_bits, "float", 1, only.block_elems, True)):
            raise ValueError(f"format {fmt} is {_words(want)}, the config group says {_words(given)}")
        return only
    integer = {"pack-quantized": True, "int-quantized": True, "float-quantized": False}[fmt]
    if (kind == "int") != integer or (not integer and (bits, symmetric) != (8, True)):
        raise ValueError(f"format {fmt} with {_words((bits, kind, rows, columns, symmetric))} has no meaning here")
    if integer and (f"int{bits}" not in INTS or (fmt == "int-quantized" and bits != 8)):
        allowed = "8" if fmt == "int-quantized" else "2, 3, 4, 8"
        raise ValueError(f"integers of {bits} bits in format {fmt} (allowed: {allowed})")
    if scale_dtype not in SCALES:
        raise ValueError(f"weight_scale has dtype {scale_dtype} (allowed: {', '.join(SCALES)})")
    element = f"{'' if symmetric else 'u'}int{bits}" if integer else "e4m3"
    scheme = Scheme(element, columns, SCALES[scale_dtype], block_rows=rows, zero=None if symmetric else "int")
    format_of(scheme, fmt)
    return scheme


def parts_of(module: str, spec: TensorSpec, fmt: str, single_dims: int = 1) -> tuple[Part, ...]:
    """Where the matrix `spec` [out, in] of `module` lies.

    Args:
        single_dims: dimensions of a scale of the whole tensor: 1 as the library writes it, 0 as some files have it.
    """
    scheme = spec.scheme
    assert scheme is not None
    out, n = spec.shape
    packed: tuple[Step, ...] = ()
    if fmt == "pack-quantized":
        signed = scheme.zero is None
        packed = (Words(scheme.element_bits, n * scheme.element_bits // 8, signed),)
    elif not fmt.endswith("pack-quantized"):
        dtype = "I8" if fmt == "int-quantized" else "F8_E4M3"
        packed = (Bytes(dtype, flip=SIGN if scheme.zero is not None else 0),)
    whole = (scheme.block_rows, scheme.block_elems) == (0, 0)
    single = (Single(scheme.dtypes["scales"], single_dims),) if whole else ()
    leaf = "weight_packed" if "pack" in fmt else "weight"
    parts = [
        Part(f"{module}.{leaf}", "codes", packed),
        Part(f"{module}.weight_scale", "scales", single),
    ]
    if scheme.second is not None:
        parts.append(Part(f"{module}.weight_global_scale", "second", (Single("F32", 1),)))
    if scheme.zero is not None:
        zeros: Step = WordsDown(scheme.element_bits, out) if fmt == "pack-quantized" else Bytes("I8", flip=SIGN)
        parts.append(Part(f"{module}.weight_zero_point", "zeros", (zeros,)))
    return tuple(parts)


def shape_from(
    module: str, leaves: Mapping[str, TensorSpec], scheme: Scheme, fmt: str, stated: tuple[int, ...] | None
) -> tuple[int, int] | None:
    """The shape [out, in] that the leaves of a module imply, or None when there is not enough to tell.

    Args:
        stated: the content of weight_shape, which alone tells in when words are not full.
    """
    leaf = leaves.get(f"{module}.weight_packed" if "pack" in fmt else f"{module}.weight")
    if leaf is None or len(leaf.shape) != 2:
        return None
    out, n = leaf.shape
    if fmt == "pack-quantized":
        scale = leaves.get(f"{module}.weight_scale")
        if stated is not None and len(stated) == 2:
            return stated[0], stated[1]
        if scheme.block_elems and scale is not None and len(scale.shape) == 2:
            return out, scale.shape[1] * scheme.block_elems
        return out, n * 32 // scheme.element_bits
    return out, n * 8 // scheme.element_bits


def _strategy(scheme: Scheme) -> str:
    if scheme.second is not None:
        return "tensor_group"
    if (scheme.block_rows, scheme.block_elems) == (0, 0):
        return "tensor"
    if scheme.block_rows == 1:
        return "group" if scheme.block_elems else "channel"
    if not scheme.block_rows or not scheme.block_elems:
        raise ValueError("compressed-tensors has no scale of whole columns, and none of several whole rows")
    return "block"


def _block(args: Mapping[str, Any]) -> tuple[int, int]:
    """(block_rows, block_elems) of a strategy; inferred from group_size when it is absent, as the library does."""
    size, structure, strategy = args.get("group_size"), args.get("block_structure"), args.get("strategy")
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = str(strategy).lower()
    if strategy in ("group", "tensor_group") and isinstance(size, int) and size > 0:
        return 1, size
    if strategy == "block" and isinstance(structure, list) and [type(n) for n in structure] == [int, int]:
        return structure[0], structure[1]
    if strategy in ("tensor", "channel"):
        return (0, 0) if strategy == "tensor" else (1, 0)
    allowed = "tensor, channel, group or tensor_group with group_size, block with block_structure"
    raise ValueError(
        f"strategy {strategy!r} with group_size={size!r}, block_structure={structure!r} (allowed: {allowed})"
    )


def _words(given: tuple[Any, ...]) -> str:
    bits, kind, rows, columns, symmetric = given
    return f"{bits}-bit {kind}, blocks of {rows or 'all'} × {columns or 'all'}, {'' if symmetric else 'a'}symmetric"
