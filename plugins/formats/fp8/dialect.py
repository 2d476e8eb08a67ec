"""FP8 of tiles, as DeepSeek and Qwen publish it and transformers and vLLM read it (`quant_method` fp8).

    leaf of MODULE       for a matrix [out, in]
    weight               F8_E4M3 [out, in]
    weight_scale_inv     F32 or BF16 [⌈out/rows⌉, ⌈in/columns⌉], one for each tile; it multiplies, whatever it is called

Tiles at the ends may be cut. In a scheme blocks of columns are whole, so where columns are no multiple of a tile's they
become blocks of their greatest common divisor, each with its tile's scale: 192 columns in tiles of 128 are 3 of 64.
Fewer columns than a tile has are one block.

Names: transformers' `finegrained_fp8`, of which activations are quantized when they are seen, in groups of a tile's
columns; with `activation_scheme` static they have scales, `input_scale`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, ClassVar

from pipeline.errors import PlanError, Problem
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from plugins.formats.common import linears, read_only
from plugins.formats.common.inputs import unrounded
from plugins.formats.common.packings import Bytes
from plugins.formats.fp8.tiles import CutTiles

SCALE = "weight_scale_inv"
LEFT_OUT = {"input_scale": "describes how activations were quantized; the weights do not need it"}


@dataclass(frozen=True, slots=True)
class Fp8:
    """Names of FP8 checkpoints in tiles, for reading."""

    companions: ClassVar[tuple[str, ...]] = ()

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By the quant_method of config.json."""
        return read_only.arguments(config).get("quant_method") == "fp8"

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`."""
        given = read_only.arguments(config)
        tile, fmt = given.get("weight_block_size"), given.get("fmt", "e4m3")
        problems = []
        if not isinstance(tile, list) or [type(n) for n in tile] != [int, int] or min(tile) < 1:
            problems.append(f"weight_block_size={tile!r} (allowed: rows and columns of a tile, as [128, 128])")
        if fmt not in ("e4m3", "float8_e4m3fn"):
            problems.append(f"fmt={fmt!r} (allowed: e4m3)")
        found = [Problem(read_only.WHERE, text) for text in problems]
        found += [
            Problem(name, f"is {spec.dtype} and has no {SCALE}")
            for name, spec in leaves.items()
            if spec.dtype.startswith("F8_") and f"{name.rpartition('.')[0]}.{SCALE}" not in leaves
        ]
        if found:
            raise PlanError(found)
        rows, columns = tile  # type: ignore[misc]  # two numbers, as looked at above
        dtype = linears.config_dtype(config)

        def matrix(module: str) -> Bound:
            out, width = read_only.matrix_shape(module, leaves, "weight")
            block = gcd(columns, width) if width > columns else width
            scheme = Scheme("e4m3", block, read_only.scale_of(module, leaves, SCALE), block_rows=rows)
            cut = (CutTiles(columns // block, width // block),) if width > columns and width % columns else ()
            parts = Part(f"{module}.weight", "codes", (Bytes("F8_E4M3"),)), Part(f"{module}.{SCALE}", "scales", cut)
            return Bound(TensorSpec((out, width), dtype, scheme), parts)

        binding = read_only.decode(leaves, config, (SCALE,), matrix, "FP8", left_out=LEFT_OUT)
        if given.get("activation_scheme", "dynamic") != "dynamic":
            return binding
        inputs = {"activation_scheme": unrounded("fp8_e4m3, a scale for the whole row")}
        return replace(binding, ignored={**binding.ignored, **inputs})

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """
        Raises:
            PlanError: always: there are better formats to write.
        """
        read_only.refuse("FP8 of tiles")
