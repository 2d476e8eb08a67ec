"""NVIDIA ModelOpt's NVFP4 and FP8, as `export_hf_checkpoint` lays them out and TensorRT-LLM, vLLM and SGLang read them.

    leaf of MODULE     for a matrix [out, in] of NVFP4
    weight             U8 [out, in/2], two E2M1 a byte, the first in the low nibble
    weight_scale       F8_E4M3 [out, in/16]
    weight_scale_2     F32 []: the second-level scale, amax / (448 · 6), which multiplies
    input_scale        F32 []: the second-level scale of activations, calibrated: amax / (448 · 6)

    leaf of MODULE     for a matrix [out, in] of FP8
    weight             F8_E4M3 [out, in]
    weight_scale       F32 []: amax / 448
    input_scale        F32 []: of activations, calibrated: amax / 448

    leaf of STACK                  for gpt-oss's ….experts.gate_up_proj and .down_proj, [E, out, in]
    STACK                          U8 [E, in/2, out]: as Hugging Face has plain ones, transposed, gate and up in turns
    STACK_weight_scale             F8_E4M3 [E, in/16, out]
    STACK_weight_scale_2           F32 [E]; ModelOpt's own exports have one for all experts, F32 []
    STACK_input_scale              F32 []

(`_export_weight`, `_export_bmm_experts` and `get_activation_scaling_factor` of ModelOpt 0.43's export; SGLang's
`_load_fused_per_tensor_scale` takes a second-level scale of either shape.) Both matrices of a layer are quantized or
neither: they are one module.

compressed-tensors holds the same element and block scales with the reciprocal of the second one. A reciprocal is
rounded, so neither dialect takes the other's scheme. Config: `quantization_config` in config.json, and the older
hf_quant_config.json; both are read and both are written.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pipeline.errors import ConfigError, PlanError, Problem, did_you_mean
from pipeline.formats import INPUTS
from pipeline.method import Method
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.inputs import InputLeaves, InputScales
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Index, Transpose
from pipeline.tensors.views import stored_leaves
from plugins.facts.gpt_oss import is_gpt_oss
from plugins.formats.common import experts, linears
from plugins.formats.common.inputs import USED, wanted, written
from plugins.formats.common.packings import Bytes, Single, Vector

NVFP4 = Scheme("e2m1", 16, "e4m3", second="f32")
FP8 = Scheme("e4m3", 0, "f32", block_rows=0)
COMPANION = "hf_quant_config.json"
ALGORITHMS = ("NVFP4", "W4A16_NVFP4", "FP8")
WHERE = "config.json"
PACKED = ("weight_scale", "weight_scale_2")
IN_STACK = re.compile(rf"(?P<stack>{experts.STACK.pattern})_(?P<parameter>[a-z]+_scale(_2)?)")
LEFT_OUT = {
    "output_scale": "describes how activations were quantized; the weights do not need it",
    "k_scale": "describes how the KV cache was quantized; the weights do not need it",
    "v_scale": "describes how the KV cache was quantized; the weights do not need it",
}


@dataclass(frozen=True, slots=True)
class ModelOpt:
    """Names and packing of ModelOpt's NVFP4 and FP8.

    Attributes:
        quant_algo: what is written of NVFP4: `NVFP4`, by which readers expect calibrated input scales for activations
            in FP4, or `W4A16_NVFP4`: weights only. FP8 is always with input scales.
        activations: what readers quantize activations to, as a method: as weights are; None: no scales are written.
        activations_scales: `calibrated`: those of the checkpoint are written; readers have no others.
    """

    quant_algo: Literal["NVFP4", "W4A16_NVFP4"] = "NVFP4"
    activations: Method | None = None
    activations_scales: Literal["dynamic", "calibrated"] = "dynamic"

    companions: ClassVar[tuple[str, ...]] = (COMPANION,)
    writes_inputs: ClassVar[bool] = True

    def recognizes(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
        """By quant_method, or by the producer that hf_quant_config.json names."""
        method = (config.get("quantization_config") or {}).get("quant_method")
        if method is not None:
            return str(method).startswith("modelopt")
        return _section(config, COMPANION, "producer").get("name") == "modelopt"

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`. A module is quantized when it has packed leaves, whatever the config excludes."""
        algorithm = _algorithm(config)
        if algorithm not in ALGORITHMS:
            text = f"quant_algo is {algorithm!r}{did_you_mean(str(algorithm), ALGORITHMS)}"
            raise PlanError([Problem(WHERE, text)])
        reader = _Reader(leaves, linears.config_dtype(config), is_gpt_oss(config), FP8 if algorithm == "FP8" else NVFP4)
        packed = dict.fromkeys(m for n in leaves if (m := reader.owner(n, PACKED)) is not None)
        found = {module: reader.matrix(module) for module in packed}

        def owner(leaf: str) -> str | None:
            module = reader.owner(leaf, ("weight", *PACKED)) or leaf
            return module if module in packed else None

        matrices, ignored, unknown = linears.sort_out(leaves, found, owner, reader.left_out, whole=reader.stacks)
        tensors, more = linears.gather(matrices, config)
        if problems := [*reader.problems, *unknown, *more]:
            raise PlanError(problems)
        rest = {k: v for k, v in config.items() if k not in ("quantization_config", COMPANION)}
        # The scale of all experts is one leaf of many parts.
        once = {n: replace(b, parts=tuple({p.leaf: p for p in b.parts}.values())) for n, b in tensors.items()}
        scales = {n: (leaf,) for n, b in once.items() if b.spec.scheme and (leaf := _input_leaf(n, b)) in leaves}
        scales = {n: leaf for n, leaf in scales.items() if leaves[leaf[0]].size == 1}
        inputs = InputLeaves(reader.scheme, scales) if scales and algorithm != "W4A16_NVFP4" else None
        return Binding(tensors, stored_leaves(once), rest, ignored, drop=(COMPANION,), input_scales=inputs)

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`."""
        given = config.get(INPUTS)
        config = {k: v for k, v in config.items() if k != INPUTS}
        bounds, modules, problems = linears.express(tensors, config, _checked_parts, take_apart=False)
        dtype, more = linears.dtype_problems(tensors)
        stacks, halves = _stacks(tensors, config)
        schemes = dict.fromkeys(s.scheme for s in tensors.values() if s.scheme is not None)
        scheme = next(iter(schemes), NVFP4)
        scales, specs, lacking = self._scales(bounds, scheme, given)
        if len(schemes) > 1 and not problems:
            lacking.append(Problem("export.dialect", "NVFP4 and FP8 in one checkpoint are read, and not written"))
        if problems := [*problems, *halves, *more, *lacking]:
            raise PlanError(problems)
        out = linears.with_dtype({k: v for k, v in config.items() if k != COMPANION}, dtype)
        kept = [
            *(m for m, scheme in modules.items() if scheme is None),
            *(m for m, packs in stacks.items() if not packs),
        ]
        if not any(m.rpartition(".")[2] == "lm_head" for m in modules):
            kept.append("lm_head")  # tied: a module without weights of its own
        algorithm = "FP8" if scheme == FP8 else self.quant_algo
        size = {"group_size": scheme.block_elems} if scheme == NVFP4 else {}
        weights = {"dynamic": False, "num_bits": scheme.element_bits, "type": "float", **size}
        inputs = {"input_activations": dict(weights)} if scales else {}
        out["quantization_config"] = {
            "config_groups": {"group_0": {**inputs, "weights": weights, "targets": ["Linear"]}},
            "ignore": kept,
            "quant_algo": algorithm,
            "quant_method": "modelopt",
        }
        older = {
            "producer": {"name": "modelopt"},  # readers know the format by this name
            "quantization": {
                "quant_algo": algorithm,
                "kv_cache_quant_algo": None,
                **size,
                "exclude_modules": kept,
            },
        }
        files = {COMPANION: (json.dumps(older, indent=2) + "\n").encode()}
        return Binding(bounds, {**stored_leaves(bounds), **specs}, out, constants=scales, files=files)

    def _scales(
        self, bounds: Mapping[str, Bound], scheme: Scheme, given: InputScales | None
    ) -> tuple[dict[str, bytes], dict[str, TensorSpec], list[Problem]]:
        """Leaves of scales of inputs, their specs, and what is wrong with them."""
        needed = "calibrate=absmax activations_scales=calibrated activations="
        if self.activations is None:
            text = f"FP8 of ModelOpt comes with calibrated scales of inputs; {needed}fp8_e4m3 makes them"
            return {}, {}, [Problem("activations", text)] if scheme == FP8 else []
        name = {NVFP4: "nvfp4", FP8: "fp8_e4m3"}.get(scheme, "nvfp4")
        try:
            if self.activations_scales == "dynamic":
                raise ValueError(f"readers of ModelOpt take calibrated scales of inputs alone; {needed}{name}")
            if scheme == NVFP4 and self.quant_algo != "NVFP4":
                raise ValueError(f"export.dialect.quant_algo={self.quant_algo} has activations as they are")
            if (found := wanted(self.activations, given)) != scheme:
                text = TensorSpec((), "F32", found).encoding
                raise ValueError(f"readers of ModelOpt round inputs as weights are: activations={name}, not {text}")
        except (ValueError, ConfigError) as why:
            return {}, {}, [Problem("activations", str(why))]
        assert given is not None
        return written(bounds, given, lambda n: (_input_leaf(n, bounds[n]),), ())


def _input_leaf(name: str, bound: Bound) -> str:
    """Where the scale of a packed tensor's inputs is."""
    if len(bound.spec.shape) == 3:
        return f"{name}_input_scale"
    return f"{bound.parts[0].leaf.rpartition('.')[0]}.input_scale"


def _checked_parts(module: str, spec: TensorSpec) -> tuple[Part, ...]:
    """
    Raises:
        ValueError: a scheme that is not NVFP4 with a second-level scale that multiplies.
    """
    scheme = spec.scheme
    if scheme == FP8:
        if len(spec.shape) == 2:
            return _fp8_parts(module, 0)
        raise ValueError("ModelOpt has no stacks of experts in FP8; NVFP4 holds them")
    if scheme is not None and scheme != NVFP4 and scheme.second == "inverse_f32":
        raise ValueError(
            "weight_scale_2 is a scale (second=f32), not its reciprocal: the same values in other bytes, and not "
            "always the same after rounding; quantize with quant.second=f32, or export=compressed_tensors"
        )
    if scheme != NVFP4:
        raise ValueError("ModelOpt checkpoints are written as NVFP4 (e2m1/16/e4m3/f32) or FP8 (e4m3/tensor/f32) only")
    return _parts(module, 0) if len(spec.shape) == 2 else _stack_parts(module, spec, None)


def _stacks(tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> tuple[dict[str, bool], list[Problem]]:
    """Whether each module of stacked experts is quantized, and those that are so by half."""
    found: dict[str, bool] = {}
    problems = []
    for name, spec in tensors.items():
        stack = experts.stack_of(name, spec.shape) if experts.is_stack(name, spec.shape, config) else None
        if stack is not None and not stack["bias"]:
            packs = spec.scheme is not None
            if found.setdefault(stack["stem"], packs) != packs:
                text = f"{'is' if packs else 'is not'} quantized, unlike the other matrix of its experts"
                problems.append(Problem(name, f"{text}; readers of ModelOpt's gpt-oss take both matrices or neither"))
    return found, problems


class _Reader:
    """Quantized modules and stacks of a source, one at a time, and what is wrong with them."""

    def __init__(self, leaves: Mapping[str, TensorSpec], dtype: str, family: bool, scheme: Scheme):
        self.leaves, self.dtype, self.family, self.scheme = leaves, dtype, family, scheme
        self.problems: list[Problem] = []
        self.stacks: set[str] = set()

    def owner(self, leaf: str, parameters: tuple[str, ...]) -> str | None:
        """The module or stack of which `leaf` is one of `parameters`."""
        if self.family and (match := IN_STACK.fullmatch(leaf)):
            return match["stack"] if match["parameter"] in parameters else None
        module, _, parameter = leaf.rpartition(".")
        return module if parameter in parameters else None

    def left_out(self, leaf: str) -> str | None:
        """Why `leaf` is left out, or None."""
        match = IN_STACK.fullmatch(leaf) if self.family else None
        parameter = match["parameter"] if match else leaf.rpartition(".")[2]
        return USED if parameter == "input_scale" else LEFT_OUT.get(parameter)

    def matrix(self, module: str) -> Bound | None:
        """The weight of a module, or a stack; None when it cannot be told what its leaves mean."""
        bound = self._stack(module) if self.family and experts.STACK.fullmatch(module) else self._matrix(module)
        if bound is not None:
            kind = "FP8" if self.scheme == FP8 else "NVFP4"
            self.problems += linears.leaf_problems(bound, self.leaves, f"{kind} of {list(bound.spec.shape)}")
        return bound

    def _matrix(self, module: str) -> Bound | None:
        weight = self.leaves.get(f"{module}.weight")
        if f"{module}.pre_quant_scale" in self.leaves:
            return self._refuse(f"{module}.weight", "has a pre_quant_scale for its inputs, which no scheme says")
        if self.scheme == FP8:
            if weight is None or len(weight.shape) != 2:
                return self._refuse(f"{module}.weight", "missing or no matrix; FP8 needs F8_E4M3 [out, in]")
            scale = self.leaves.get(f"{module}.weight_scale")
            one = 1 if scale is not None and scale.shape == (1,) else 0
            return Bound(TensorSpec(weight.shape, self.dtype, FP8), _fp8_parts(module, one))
        if weight is None or len(weight.shape) != 2:
            return self._refuse(f"{module}.weight", "missing or no matrix; NVFP4 needs U8 [out, in/2]")
        spec = TensorSpec((weight.shape[0], 2 * weight.shape[1]), self.dtype, NVFP4)
        if reason := NVFP4.problem(spec.shape):
            return self._refuse(f"{module}.weight", f"holds two elements a byte: {reason}")
        second = self.leaves.get(f"{module}.weight_scale_2")
        return Bound(spec, _parts(module, 1 if second is not None and second.shape == (1,) else 0))

    def _stack(self, name: str) -> Bound | None:
        if self.scheme == FP8:
            return self._refuse(name, "is a stack of experts in FP8, whose layout ModelOpt does not publish")
        self.stacks.add(name)
        leaf = self.leaves.get(name)
        if leaf is None or len(leaf.shape) != 3:
            return self._refuse(name, "missing or no stack of matrices; NVFP4 needs U8 [E, in/2, out]")
        spec = TensorSpec((leaf.shape[0], leaf.shape[2], 2 * leaf.shape[1]), self.dtype, NVFP4)
        if reason := NVFP4.problem(spec.shape):
            return self._refuse(name, f"holds two elements a byte: {reason}")
        second = self.leaves.get(f"{name}_weight_scale_2")
        shared = second is not None and second.shape in ((), (1,))
        return Bound(spec, _stack_parts(name, spec, len(second.shape) if shared and second is not None else None))

    def _refuse(self, where: str, text: str) -> Bound | None:
        self.problems.append(Problem(where, text))
        return None


def _fp8_parts(module: str, scale_dims: int) -> tuple[Part, ...]:
    return (
        Part(f"{module}.weight", "codes", (Bytes("F8_E4M3"),)),
        Part(f"{module}.weight_scale", "scales", (Single("F32", scale_dims),)),
    )


def _parts(module: str, second_dims: int) -> tuple[Part, ...]:
    return (
        Part(f"{module}.weight", "codes"),
        Part(f"{module}.weight_scale", "scales"),
        Part(f"{module}.weight_scale_2", "second", (Single("F32", second_dims),)),
    )


def _stack_parts(name: str, spec: TensorSpec, second_dims: int | None) -> tuple[Part, ...]:
    """`second_dims`: dimensions of the leaf that holds one second-level scale for all experts; None for one each."""
    leaf = f"{name}_weight_scale_2"
    one = Single("F32", second_dims or 0)
    each = (Part(leaf, "second", (Vector("F32"),)),)
    shared = tuple(Part(leaf, "second", (one,), (Index(e),)) for e in range(spec.shape[0]))
    return (
        Part(name, "codes", (Transpose(),)),
        Part(f"{name}_weight_scale", "scales", (Transpose(),)),
        *(each if second_dims is None else shared),
    )


def _algorithm(config: Mapping[str, Any]) -> Any:
    """quant_algo of config.json, or else of hf_quant_config.json."""
    given = config.get("quantization_config") or {}
    if "quant_algo" not in given:
        given = _section(config, COMPANION, "quantization")
    return given.get("quant_algo")


def _section(config: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The object that `keys` lead to; an empty one when they lead nowhere."""
    for key in keys:
        found = config.get(key)
        config = found if isinstance(found, Mapping) else {}
    return config
