"""bitsandbytes' NF4 checkpoints, as transformers saves them.

    leaf of MODULE                              for a matrix [out, in], in a multiple of the blocksize (64)
    weight                                      U8 [out·in/2, 1], two elements a byte, the first in the high nibble
    weight.absmax                               F32 [blocks]; U8 when the scales are quantized themselves
    weight.quant_map                            F32 [16], the values of the 16 codes
    weight.quant_state.bitsandbytes__nf4        U8, JSON: blocksize, dtype, shape; of quantized scales also theirs
    weight.nested_absmax                        F32 [blocks/256], only of quantized scales
    weight.nested_quant_map                     F32 [256], the values of the 256 codes, only of quantized scales

Blocks run over the flattened matrix. Where a row is a whole number of blocks that is the same as blocks along rows, and
only such matrices are read and written. The code books must be bitsandbytes' own, bit for bit: schemes have no others.

Quantized scales have an offset, which the library keeps in the JSON beside facts known beforehand. JSON allows spaces
around it, so the leaf is written at the length of the longest number and filled up.

Names and JSON: `QuantState.as_dict` of bitsandbytes 0.50.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.formats import PEEKED
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import DYNAMIC8_BLOCK, Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_leaves
from plugins.facts import codebooks
from plugins.facts.dtypes import TORCH
from plugins.formats.bitsandbytes.state import STATE, Nested, StateJson, read_state, state_json
from plugins.formats.common import linears
from plugins.formats.common.experts import EXPERT
from plugins.formats.common.packings import Flat

WHERE = "config.json"
NOTES = ("experts are packed one by one, and transformers cannot put such into its stacks",)  # 5.23
BLOCKSIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # `quantize_4bit` of bitsandbytes
PACKED = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")


@dataclass(frozen=True, slots=True)
class BitsAndBytes:
    """Names and packing of bitsandbytes' NF4, single or double quantized."""

    companions: ClassVar[tuple[str, ...]] = ()
    peeks: ClassVar[tuple[str, ...]] = ("*.weight.quant_state.*", "*.weight.quant_map", "*.weight.nested_quant_map")

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By the quant_method of config.json, or the quant_state of a leaf where there is none."""
        method = (config.get("quantization_config") or {}).get("quant_method")
        return method == "bitsandbytes" or (method is None and any(n.endswith(f".weight.{STATE}") for n in leaves))

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`."""
        given = config.get("quantization_config") or {}
        if given.get("load_in_8bit") or given.get("bnb_4bit_quant_type", "nf4") != "nf4":
            kind = "LLM.int8" if given.get("load_in_8bit") else given["bnb_4bit_quant_type"]
            raise PlanError([Problem(WHERE, f"quantization_config is {kind}; of bitsandbytes' formats NF4 is read")])
        reader = _Reader(leaves, config.get(PEEKED, {}))
        packed = dict.fromkeys(m for n in leaves if (m := _owner(n)) is not None)
        found = {module: reader.matrix(module) for module in packed}

        def owner(leaf: str) -> str | None:
            module = _owner(leaf) or leaf.removesuffix(".weight")
            return module if module in packed and leaf != module else None

        matrices, ignored, unknown = linears.sort_out(leaves, found, owner, lambda leaf: None, reader.constants)
        tensors, more = linears.gather(matrices, config)
        if problems := [*reader.problems, *unknown, *more]:
            raise PlanError(problems)
        stored = {**stored_leaves(tensors), **{n: leaves[n] for n in reader.constants}}
        rest = {k: v for k, v in config.items() if k not in ("quantization_config", PEEKED)}
        return Binding(tensors, stored, rest, ignored, reader.constants)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`."""
        constants: dict[str, bytes] = {}
        specs: dict[str, TensorSpec] = {}

        def parts(module: str, spec: TensorSpec) -> tuple[Part, ...]:
            _check(spec)
            assert spec.scheme is not None
            weight, nested = f"{module}.weight", spec.scheme.whole_only
            constants[f"{weight}.quant_map"] = codebooks.nf4().tobytes()
            specs[f"{weight}.quant_map"] = TensorSpec((16,), "F32")
            if nested:
                constants[f"{weight}.nested_quant_map"] = codebooks.dynamic8().tobytes()
                specs[f"{weight}.nested_quant_map"] = TensorSpec((256,), "F32")
            else:
                state = state_json(spec.shape, TORCH[spec.dtype], spec.scheme.block_elems)
                constants[f"{weight}.{STATE}"] = state
                specs[f"{weight}.{STATE}"] = TensorSpec((len(state),), "U8")
            return _parts(module, spec, Nested(None), writing=True)

        bounds, modules, problems = linears.express(tensors, config, parts)
        dtype, more = linears.dtype_problems(tensors)
        if problems := [*problems, *more]:
            raise PlanError(problems)
        out = linears.with_dtype(config, dtype)
        kept = [m for m, scheme in modules.items() if scheme is None]
        if not any(m.rpartition(".")[2] == "lm_head" for m in modules):
            kept.append("lm_head")  # tied: a module without weights of its own
        out["quantization_config"] = {
            "bnb_4bit_compute_dtype": dtype,
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": any(s is not None and s.whole_only for s in modules.values()),
            "llm_int8_skip_modules": kept,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "quant_method": "bitsandbytes",
        }
        stacks = any(s is not None and EXPERT.fullmatch(f"{m}.weight") for m, s in modules.items())
        return Binding(bounds, {**stored_leaves(bounds), **specs}, out, constants=constants, notes=NOTES * stacks)


class _Reader:
    """Quantized modules of a source, one at a time, and what is wrong with them."""

    def __init__(self, leaves: Mapping[str, TensorSpec], peeked: Mapping[str, Any]):
        self.leaves, self.peeked = leaves, peeked
        self.problems: list[Problem] = []
        self.constants: dict[str, bytes] = {}

    def matrix(self, module: str) -> Bound | None:
        """The weight of a module that has packed leaves; None when it cannot be told what they mean."""
        weight = f"{module}.weight"
        try:
            state = read_state(self._content(f"{weight}.{STATE}"))
            nested = "nested_offset" in state
            if (block := state["blocksize"]) not in BLOCKSIZES:
                raise ValueError(f"blocksize is {block} (allowed: {', '.join(map(str, BLOCKSIZES))})")
            scheme = Scheme("nf4", block, "dynamic8" if nested else "f32", second="dynamic8" if nested else None)
            spec = TensorSpec(tuple(state["shape"]), state["dtype"], scheme)
            _check(spec)
            if nested and state["nested_blocksize"] != DYNAMIC8_BLOCK:
                raise ValueError(f"nested_blocksize is {state['nested_blocksize']} (allowed: {DYNAMIC8_BLOCK})")
            self._book(f"{weight}.quant_map", codebooks.nf4())
            if nested:
                self._book(f"{weight}.nested_quant_map", codebooks.dynamic8())
        except ValueError as why:
            self.problems.append(Problem(weight, str(why)))
            return None
        bound = Bound(spec, _parts(module, spec, Nested(state.get("nested_offset"))))
        self.problems += linears.leaf_problems(bound, self.leaves, f"NF4 of {list(spec.shape)}")
        return bound

    def _content(self, leaf: str) -> Any:
        if leaf not in self.leaves:
            near = did_you_mean(leaf, [n for n in self.leaves if n.startswith(leaf.partition(".weight.")[0])])
            raise ValueError(f"{leaf} is missing{near}")
        if leaf not in self.peeked:
            raise ValueError(f"{leaf} was not read, and says what the other leaves mean")
        content = np.ascontiguousarray(self.peeked[leaf])
        self.constants[leaf] = content.tobytes()
        return content

    def _book(self, leaf: str, want: Any) -> None:
        given = self._content(leaf)
        if given.dtype != want.dtype or given.tobytes() != want.tobytes():
            raise ValueError(f"{leaf} is not the code book of bitsandbytes; values would decode differently")


def _check(spec: TensorSpec) -> None:
    """
    Raises:
        ValueError: a scheme or a shape that bitsandbytes' NF4 does not have.
    """
    s = spec.scheme
    if s is None or (s.element, s.block_rows, s.zero) != ("nf4", 1, None) or s.scale not in ("f32", "dynamic8"):
        raise ValueError("bitsandbytes checkpoints are NF4 (nf4/64/f32 or nf4/64/dynamic8/dynamic8) only")
    if s.second not in (None, "dynamic8") or s.block_elems not in BLOCKSIZES:
        raise ValueError(f"NF4 has no second-level scale but dynamic8, and blocks of {', '.join(map(str, BLOCKSIZES))}")
    if len(spec.shape) != 2:
        raise ValueError(f"shape {list(spec.shape)} is no matrix")
    if spec.shape[1] % s.block_elems:
        text = f"in-features {spec.shape[1]} are not a multiple of the blocksize {s.block_elems}: blocks would run on"
        raise ValueError(f"{text} from one row into the next")


def _parts(module: str, spec: TensorSpec, nested: Nested, writing: bool = False) -> tuple[Part, ...]:
    scheme = spec.scheme
    assert scheme is not None
    weight, (_, n) = f"{module}.weight", spec.shape
    scale = scheme.dtypes["scales"]
    parts = [
        Part(weight, "codes", (Flat("U8", n // 2, column=True, swap=True),)),
        Part(f"{weight}.absmax", "scales", (Flat(scale, n // scheme.block_elems),)),
    ]
    if scheme.whole_only:
        parts.append(Part(f"{weight}.nested_absmax", "second", (nested,)))
        if writing:
            state = StateJson(spec.shape, TORCH[spec.dtype], scheme.block_elems)
            parts.append(Part(f"{weight}.{STATE}", "second", (state,)))
    return tuple(parts)


def _owner(leaf: str) -> str | None:
    """The module of a leaf `MODULE.weight.…` of a packed matrix."""
    module, found, more = leaf.rpartition(".weight.")
    return module if found and (more in PACKED or more.startswith("quant_state.")) else None
