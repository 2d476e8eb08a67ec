"""compressed-tensors: the format of llm-compressor, read by vLLM and by transformers.

Every quantized module is a few leaves `MODULE.weight…`, and config.json says in groups how modules are quantized (see
`compressed_tensors_schemes` and `compressed_tensors_config`). The library knows 2-D weights only, so stacks of experts
are written one by one, gate and up apart (see `experts`). Written groups quantize activations where that is asked for,
with scales that readers make when they see them, or calibrated ones beside the weights:

    MODULE.input_scale          F32 [1], of one level of scales: `dynamic: false`, strategy tensor
    MODULE.input_global_scale   F32 [1], 448 · 6 / amax of NVFP4, whose blocks get scales when seen: `dynamic: local`

(vLLM's `compressed_tensors_w4a4_nvfp4.py` and `_w8a8_fp8.py` load them.) What else a source says about activations and
the KV cache is left out by name.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from pipeline.errors import ConfigError, PlanError, Problem
from pipeline.formats import INPUTS, PEEKED
from pipeline.method import Method
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.inputs import InputLeaves, InputScales
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_leaves
from plugins.formats.common import linears
from plugins.formats.common.experts import EXPERT
from plugins.formats.common.inputs import USED, unrounded, wanted, written
from plugins.formats.common.inputs import modules as modules_of
from plugins.formats.compressed_tensors.activations import (
    input_arguments,
    input_option,
    input_scheme,
    static_arguments,
)
from plugins.formats.compressed_tensors.config import METHOD, Groups, read_groups, write_groups
from plugins.formats.compressed_tensors.schemes import format_of, parts_of, scheme_of, shape_from

# Parameters that describe activations or caches, and the zero points of symmetric weights, which are all zero.
ACTIVATIONS = ("input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point")
CACHE = ("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point", "k_global_scale", "v_global_scale")
LEFT_OUT = {
    **dict.fromkeys(ACTIVATIONS, "describes how activations were quantized; the weights do not need it"),
    **dict.fromkeys(CACHE, "describes how the KV cache was quantized; the weights do not need it"),
}
PACKED = ("weight_packed", "weight_scale", "weight_global_scale", "weight_zero_point", "weight_shape", "weight_g_idx")


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """Names and packing of compressed-tensors.

    Attributes:
        int8: the format in which 8-bit integers are written: packed in words, which readers run with activations as
            they are, or one byte each, as it is with activations that are quantized.
        activations: what readers quantize activations to, as a method; None: nothing.
        activations_scales: `dynamic`: readers make scales; `calibrated`: those of the checkpoint are written.
    """

    int8: Literal["pack-quantized", "int-quantized"] = "pack-quantized"
    activations: Method | None = None
    activations_scales: Literal["dynamic", "calibrated"] = "dynamic"

    companions: ClassVar[tuple[str, ...]] = ()
    writes_inputs: ClassVar[bool] = True
    peeks: ClassVar[tuple[str, ...]] = ("*.weight_shape",)

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By the quant_method of config.json."""
        return (config.get("quantization_config") or {}).get("quant_method") == METHOD

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`. Modules without packed leaves are plain, whatever the groups say of them."""
        groups, problems = read_groups(config)
        if problems:
            raise PlanError(problems)
        reader = _Reader(leaves, groups, linears.config_dtype(config), config.get(PEEKED, {}))
        packed = dict.fromkeys(n.rpartition(".")[0] for n in leaves if n.rpartition(".")[2] in PACKED)
        found = {module: reader.matrix(module) for module in packed}

        def owner(leaf: str) -> str | None:
            module, _, parameter = leaf.rpartition(".")
            return module if module in packed and parameter in ("weight", *PACKED) else None

        def left_out(leaf: str) -> str | None:
            module, _, parameter = leaf.rpartition(".")
            if parameter == "weight_zero_point" and found.get(module):
                return "zero points of symmetric weights are zero"
            return USED if leaf in scales else LEFT_OUT.get(parameter)

        scales = _scales(leaves, groups, found)
        matrices, ignored, unknown = linears.sort_out(leaves, found, owner, left_out, reader.shapes)
        for group in groups.groups:
            if option := input_option(group.inputs):
                ignored[f"config_groups.{group.name}.input_activations"] = unrounded(option)
        tensors, more = linears.gather(matrices, config)
        if problems := [*reader.problems, *unknown, *more]:
            raise PlanError(problems)
        stored = {**stored_leaves(tensors), **{n: leaves[n] for n in reader.shapes}}
        rest = {k: v for k, v in config.items() if k not in ("quantization_config", PEEKED)}
        return Binding(tensors, stored, rest, ignored, reader.constants, input_scales=_inputs(tensors, scales))

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`. Tensors may differ in scheme: each scheme is a config group."""
        constants: dict[str, bytes] = {}
        given = config.get(INPUTS)
        int8, inputs, problem = self._inputs(given)
        config = {k: v for k, v in config.items() if k != INPUTS}

        def parts(module: str, spec: TensorSpec) -> tuple[Part, ...]:
            assert spec.scheme is not None
            fmt = format_of(spec.scheme, int8)
            if fmt == "pack-quantized":
                constants[f"{module}.weight_shape"] = np.array(spec.shape, "<i8").tobytes()
            return parts_of(module, spec, fmt)

        bounds, modules, problems = linears.express(tensors, config, parts)
        dtype, more = linears.dtype_problems(tensors)
        shapes = {n: TensorSpec((2,), "I64") for n in constants}
        if inputs is not None and given is not None and self.activations_scales == "calibrated":
            leaf = "input_scale" if inputs["dynamic"] is False else "input_global_scale"
            scales, specs, lacking = written(
                bounds, given, lambda n: (f"{m}.{leaf}" for m in modules_of(bounds[n])), (1,)
            )
            constants |= scales
            shapes |= specs
            more = [*more, *lacking]
        if problems := [*problem, *problems, *more]:
            raise PlanError(problems)
        out = linears.with_dtype(config, dtype)
        if not any(m.rpartition(".")[2] == "lm_head" for m in modules):
            modules["lm_head"] = None  # tied: a module without weights of its own, which `Linear` matches all the same
        kinds = {m: None if s is None else (s, format_of(s, int8)) for m, s in modules.items()}
        out["quantization_config"] = write_groups(kinds, inputs)
        stored, notes = {**stored_leaves(bounds), **shapes}, _notes(tensors, int8)
        return Binding(bounds, stored, out, constants=constants, notes=notes)

    def _inputs(self, scales: InputScales | None) -> tuple[str, dict[str, Any] | None, list[Problem]]:
        """The format of 8-bit integers, arguments of activations, and what is wrong with these."""
        if self.activations is None:
            return self.int8, None, []
        scheme = self.activations.scheme
        try:
            if scheme is None:
                raise ValueError(f"{type(self.activations).__name__} has no scheme of its own")
            if self.activations_scales == "calibrated":
                return "int-quantized", static_arguments(wanted(self.activations, scales)), []
            return "int-quantized", input_arguments(scheme), []
        except (ValueError, ConfigError) as why:
            return self.int8, None, [Problem("activations", str(why))]


def _scales(leaves: Mapping[str, TensorSpec], groups: Groups, found: Iterable[str]) -> dict[str, Scheme]:
    """Leaf → scheme of the inputs that it is a scale of; nothing where modules differ in these."""
    scales: dict[str, Scheme] = {}
    for module in found:
        group = groups.of(module)
        scheme = None if group is None else input_scheme(group.inputs)
        if scheme is not None:
            leaf = f"{module}.input_scale" if scheme.second is None else f"{module}.input_global_scale"
            scales |= {leaf: scheme} if leaf in leaves and leaves[leaf].size == 1 else {}
    return scales if len({*scales.values()}) == 1 else {}


def _inputs(tensors: Mapping[str, Bound], scales: Mapping[str, Scheme]) -> InputLeaves | None:
    """Where scales are of the inputs of tensors all of whose modules have one."""
    if not scales:
        return None
    leaves = {}
    for name, bound in tensors.items():
        mine = [f"{m}.{leaf}" for m in modules_of(bound) for leaf in ("input_scale", "input_global_scale")]
        if bound.spec.scheme is not None and 2 * len(kept := tuple(n for n in mine if n in scales)) == len(mine):
            leaves[name] = kept
    return InputLeaves(next(iter(scales.values())), leaves)


def _notes(tensors: Mapping[str, TensorSpec], int8: str) -> tuple[str, ...]:
    """What another program makes of this and does not say (transformers 5.23 with compressed-tensors 0.20)."""
    packed = {n for n, spec in tensors.items() if spec.scheme is not None}
    found = []
    if any(n.endswith(".experts.gate_up_proj") for n in packed):
        found.append(
            "experts are written one by one, as llm-compressor has them; transformers by itself does not find them "
            "there and makes random ones"
        )
    schemes = {spec.scheme for spec in tensors.values()}
    if any(s is not None and s.zero is not None and format_of(s, int8) == "pack-quantized" for s in schemes):
        found.append("zero points are packed as llm-compressor packs them: vLLM loads them, and transformers does not")
    if packed and any(EXPERT.fullmatch(n) and n not in packed for n in tensors):
        found.append("experts are plain beside what is packed, and transformers fails to put such into its stacks")
    return tuple(found)


class _Reader:
    """Quantized modules of a source, one at a time, and what is wrong with them."""

    def __init__(self, leaves: Mapping[str, TensorSpec], groups: Groups, dtype: str, peeked: Mapping[str, Any]):
        self.leaves, self.groups, self.dtype, self.peeked = leaves, groups, dtype, peeked
        self.problems: list[Problem] = []
        self.shapes: set[str] = set()  # weight_shape leaves
        self.constants: dict[str, bytes] = {}

    def matrix(self, module: str) -> Bound | None:
        """The weight of a module that has packed leaves; None when it cannot be told what they mean."""
        try:
            bound, fmt = self._matrix(module)
        except ValueError as why:
            self.problems.append(Problem(f"{module}.weight", str(why)))
            return None
        self.problems += linears.leaf_problems(bound, self.leaves, f"{fmt} of {list(bound.spec.shape)}")
        return bound

    def _matrix(self, module: str) -> tuple[Bound, str]:
        group = self.groups.of(module)
        if group is None:
            raise ValueError("has packed leaves, but no config group targets it, or `ignore` lists it")
        scale, fmt = self.leaves.get(f"{module}.weight_scale"), group.format
        if f"{module}.weight_g_idx" in self.leaves:
            raise ValueError("has weight_g_idx: columns are reordered, which no scheme says")
        try:
            scheme = scheme_of(group.weights, fmt, scale.dtype if scale else "BF16")
        except (ValueError, ConfigError) as why:
            raise ValueError(f"config group {group.name}: {why}") from None
        stated = self._stated(module) if fmt == "pack-quantized" else None
        shape = shape_from(module, self.leaves, scheme, fmt, stated)
        if shape is None:
            leaf = "weight_packed" if "pack" in fmt else "weight"
            raise ValueError(f"{leaf} is missing or no matrix; format {fmt} needs it")
        if reason := scheme.problem(shape):
            raise ValueError(f"shape {list(shape)} in format {fmt}: {reason}")
        spec = TensorSpec(shape, self.dtype, scheme)
        dims = len(scale.shape) if scale is not None and len(scale.shape) < 2 else 1
        return Bound(spec, parts_of(module, spec, fmt, dims)), fmt

    def _stated(self, module: str) -> tuple[int, ...] | None:
        """The content of weight_shape, which is noted as a constant."""
        leaf = f"{module}.weight_shape"
        spec = self.leaves.get(leaf)
        if spec is None or spec.shape != (2,) or spec.dtype not in ("I64", "I32"):
            given = "missing" if spec is None else f"{spec.dtype} {list(spec.shape)}"
            self.problems.append(Problem(leaf, f"is {given}; pack-quantized needs I64 [2]"))
            return None
        self.shapes.add(leaf)
        if leaf not in self.peeked:
            return None
        array = np.ascontiguousarray(self.peeked[leaf])
        self.constants[leaf] = array.tobytes()
        return tuple(int(n) for n in array)
