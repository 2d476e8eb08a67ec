"""AWQ's checkpoints, as AutoAWQ saves them and transformers and vLLM read them.

    leaf of MODULE     for a matrix [out, in] of 4 bits, in groups of a row
    qweight            I32 [in, out/8], eight rows of the matrix in a word, in the order of `words.COLUMNS`
    qzeros             I32 [groups, out/8], the same
    scales             F16 [groups, out]

A value is (code − zero) · scale. This is the version `gemm`; others are for other kernels, and rare.

Names and packing: AutoAWQ 0.2 (`modules/linear/gemm.py`, `utils/packing_utils.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.errors import PlanError, Problem
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Transpose
from plugins.formats.awq.words import WIDE, AwqCodes, AwqWords
from plugins.formats.common import linears, read_only

COMPANION = "quant_config.json"
MARKS = ("qweight", "qzeros")


@dataclass(frozen=True, slots=True)
class Awq:
    """Names and packing of AutoAWQ, for reading."""

    companions: ClassVar[tuple[str, ...]] = (COMPANION,)

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By the quant_method of config.json, or AutoAWQ's own file."""
        return read_only.is_of("awq", leaves, config, COMPANION)

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`."""
        given = read_only.arguments(config, COMPANION)
        bits, size = given.get("bits", given.get("w_bit")), given.get("group_size", given.get("q_group_size"))
        version, zero = str(given.get("version", "gemm")).lower(), given.get("zero_point", True)
        problems = []
        if bits != 4:
            problems.append(f"bits={bits!r} (allowed: 4)")
        if not read_only.is_group_size(size):
            problems.append(f"group_size={size!r} (allowed: columns, or -1 for whole rows)")
        if version != "gemm":
            problems.append(f"version={version!r} (allowed: gemm)")
        if zero is not True:
            problems.append(f"zero_point={zero!r} (allowed: true)")
        if problems:
            raise PlanError([Problem(read_only.WHERE, text) for text in problems])
        assert isinstance(size, int)
        dtype = linears.config_dtype(config)

        def matrix(module: str) -> Bound:
            columns, words = read_only.matrix_shape(module, leaves, "qweight")
            scheme = Scheme("uint4", max(size, 0), read_only.scale_of(module, leaves, "scales"), zero="int")
            spec = TensorSpec((words * WIDE, columns), dtype, scheme)
            if reason := scheme.problem(spec.shape):
                raise ValueError(f"shape {list(spec.shape)}: {reason}")
            return Bound(spec, (
                Part(f"{module}.qweight", "codes", (AwqCodes(), Transpose())),
                Part(f"{module}.scales", "scales", (Transpose(),)),
                Part(f"{module}.qzeros", "zeros", (Transpose(), AwqWords())),
            ))  # fmt: skip

        return read_only.decode(leaves, config, MARKS, matrix, "AWQ", companion=COMPANION)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """
        Raises:
            PlanError: always: there are better formats to write.
        """
        read_only.refuse("AWQ")
