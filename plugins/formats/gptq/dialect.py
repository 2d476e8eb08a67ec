"""GPTQ's checkpoints, as AutoGPTQ and GPTQModel save them and transformers and vLLM read them.

    leaf of MODULE     for a matrix [out, in] of `bits` bits, in groups of a row
    qweight            I32 [in·bits/32, out], element i of a column begins at bit i · bits of its stream
    qzeros             I32 [groups, out·bits/32], the same of a row; in the format `gptq` one less than they are
    scales             F16 [groups, out]
    g_idx              I32 [in], the group of each column

A value is (code − zero) · scale. Where columns were quantized in another order (`desc_act`), g_idx jumps among groups,
which no scheme says.

Names and packing: AutoGPTQ 0.7 (`qlinear_cuda_old.py`), formats: GPTQModel's `FORMAT`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import PlanError, Problem
from pipeline.formats import PEEKED
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Step, Transpose
from plugins.formats.common import linears, read_only
from plugins.formats.common.packings import Words, WordsDown
from plugins.formats.gptq.zeros import OneLess

BITS = (2, 3, 4, 8)
FORMATS = ("gptq", "gptq_v2")
COMPANION = "quantize_config.json"
MARKS = ("qweight", "qzeros", "g_idx")


@dataclass(frozen=True, slots=True)
class Gptq:
    """Names and packing of GPTQ's checkpoints, for reading."""

    companions: ClassVar[tuple[str, ...]] = (COMPANION,)
    peeks: ClassVar[tuple[str, ...]] = ("*.g_idx",)

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By the quant_method of config.json, or AutoGPTQ's own file."""
        return read_only.is_of("gptq", leaves, config, COMPANION)

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`."""
        given = read_only.arguments(config, COMPANION)
        bits, size = given.get("bits"), given.get("group_size")
        stated = [
            f for key in ("format", "checkpoint_format") if (f := given.get(key))
        ]  # the second is GPTQModel's old name
        fmt = stated[0] if stated else "gptq"
        problems = []
        if type(bits) is not int or bits not in BITS:
            problems.append(f"bits={bits!r} (allowed: {', '.join(map(str, BITS))})")
        if not read_only.is_group_size(size):
            problems.append(f"group_size={size!r} (allowed: columns, or -1 for whole rows)")
        if fmt not in FORMATS:
            problems.append(f"format={fmt!r} (allowed: {', '.join(FORMATS)})")
        if stated[1:] and stated[1] != fmt:
            problems.append(f"format={fmt!r}, and checkpoint_format={stated[1]!r}: which one it is nobody knows")
        if problems:
            raise PlanError([Problem(read_only.WHERE, text) for text in problems])
        assert isinstance(bits, int)
        assert isinstance(size, int)
        dtype, constants = linears.config_dtype(config), dict[str, bytes]()

        def matrix(module: str) -> Bound:
            rows, out = read_only.matrix_shape(module, leaves, "qweight")
            columns = rows * 32 // bits
            scale = read_only.scale_of(module, leaves, "scales")
            scheme = Scheme(f"uint{bits}", max(size, 0), scale, zero="int")
            if (leaf := f"{module}.g_idx") in leaves:
                constants[leaf] = _groups(config, leaf, columns, size)
            elif given.get("desc_act"):
                raise ValueError("desc_act=true, and no g_idx says in which order columns are")
            return _bound(module, TensorSpec((out, columns), dtype, scheme), one_less=fmt == "gptq")

        says = f"GPTQ of {bits} bits"
        return read_only.decode(leaves, config, MARKS, matrix, says, constants, companion=COMPANION)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """
        Raises:
            PlanError: always: there are better formats to write.
        """
        read_only.refuse("GPTQ")


def _groups(config: Mapping[str, Any], leaf: str, columns: int, size: int) -> bytes:
    """The content of g_idx.

    Raises:
        ValueError: columns are not in order, or nobody has looked at it.
    """
    expected = np.arange(columns, dtype="<i4") // (size if size > 0 else max(1, columns))
    found = config.get(PEEKED, {}).get(leaf)
    if found is None:
        raise ValueError("g_idx is too large to be looked at, and columns may be in another order")
    if np.shape(found) != (columns,):
        raise ValueError(
            f"g_idx has shape {list(np.shape(found))}, expected [{columns}], as many as qweight has columns"
        )
    if not np.array_equal(found, expected):
        text = "g_idx says that columns are in another order (desc_act), which no scheme says"
        text = f"{text}, or in groups of another size than {size}"
        raise ValueError(f"{text}; checkpoints made with desc_act=false can be read")
    return expected.tobytes()


def _bound(module: str, spec: TensorSpec, *, one_less: bool) -> Bound:
    """
    Raises:
        ValueError: a matrix of this shape has no such scheme.
    """
    scheme, (out, columns) = spec.scheme, spec.shape
    assert scheme is not None
    if reason := scheme.problem(spec.shape):
        raise ValueError(f"shape {list(spec.shape)}: {reason}")
    bits = scheme.element_bits
    zeros: tuple[Step, ...] = (WordsDown(bits, out), Transpose())
    return Bound(
        spec,
        (
            Part(f"{module}.qweight", "codes", (Words(bits, columns * bits // 8, signed=False), Transpose())),
            Part(f"{module}.scales", "scales", (Transpose(),)),
            Part(f"{module}.qzeros", "zeros", (OneLess(bits), *zeros) if one_less else zeros),
        ),
    )
