"""NVIDIA ModelOpt's NVFP4 checkpoints, as `export_hf_checkpoint` lays them out and TensorRT-LLM, vLLM and SGLang read.

    leaf of MODULE     for a matrix [out, in]
    weight             U8 [out, in/2], two E2M1 a byte, the first in the low nibble
    weight_scale       F8_E4M3 [out, in/16]
    weight_scale_2     F32 []: the second-level scale, amax / (448 · 6), which multiplies
    input_scale        F32 []: of activations; left out

    leaf of STACK                  for gpt-oss's ….experts.gate_up_proj and .down_proj, [E, out, in]
    STACK                          U8 [E, in/2, out]: as Hugging Face has plain ones, transposed, gate and up in turns
    STACK_weight_scale             F8_E4M3 [E, in/16, out]
    STACK_weight_scale_2           F32 [E]; ModelOpt's own exports have one for all experts, F32 []

(`_export_weight` and `_export_bmm_experts` of ModelOpt 0.43's export; SGLang's `_load_fused_per_tensor_scale` takes a
second-level scale of either shape.) Both matrices of a layer are quantized or neither: they are one module.

compressed-tensors holds the same element and block scales with the reciprocal of the second one. A reciprocal is
rounded, so neither dialect takes the other's scheme. Config: `quantization_config` in config.json, and the older
hf_quant_config.json; both are read and both are written.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.tensors.binding import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Index, Transpose
from pipeline.tensors.views import stored_leaves
from plugins.facts.gpt_oss import is_gpt_oss
from plugins.formats.common import experts, linears
from plugins.formats.common.packings import Single, Vector

NVFP4 = Scheme("e2m1", 16, "e4m3", second="f32")
COMPANION = "hf_quant_config.json"
ALGORITHMS = ("NVFP4", "W4A16_NVFP4")
WHERE = "config.json"
PACKED = ("weight_scale", "weight_scale_2")
IN_STACK = re.compile(rf"(?P<stack>{experts.STACK.pattern})_(?P<parameter>[a-z]+_scale(_2)?)")
LEFT_OUT = {
    "input_scale": "describes how activations were quantized; the weights do not need it",
    "output_scale": "describes how activations were quantized; the weights do not need it",
    "k_scale": "describes how the KV cache was quantized; the weights do not need it",
    "v_scale": "describes how the KV cache was quantized; the weights do not need it",
}


@dataclass(frozen=True, slots=True)
class ModelOpt:
    """Names and packing of ModelOpt's NVFP4.

    Attributes:
        quant_algo: what is written: `NVFP4`, by which readers expect calibrated input scales for activations in FP4,
            or `W4A16_NVFP4`: weights only.
    """

    quant_algo: Literal["NVFP4", "W4A16_NVFP4"] = "NVFP4"

    companions: ClassVar[tuple[str, ...]] = (COMPANION,)

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
        reader = _Reader(leaves, linears.config_dtype(config), is_gpt_oss(config))
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
        return Binding(tensors, stored_leaves(once), rest, ignored, drop=(COMPANION,))

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`."""
        bounds, modules, problems = linears.express(tensors, config, _checked_parts, take_apart=False)
        dtype, more = linears.dtype_problems(tensors)
        stacks, halves = _stacks(tensors, config)
        if problems := [*problems, *halves, *more]:
            raise PlanError(problems)
        out = linears.with_dtype({k: v for k, v in config.items() if k != COMPANION}, dtype)
        kept = [
            *(m for m, scheme in modules.items() if scheme is None),
            *(m for m, packs in stacks.items() if not packs),
        ]
        if not any(m.rpartition(".")[2] == "lm_head" for m in modules):
            kept.append("lm_head")  # tied: a module without weights of its own
        weights = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": NVFP4.block_elems}
        out["quantization_config"] = {
            "config_groups": {"group_0": {"weights": weights, "targets": ["Linear"]}},
            "ignore": kept,
            "quant_algo": self.quant_algo,
            "quant_method": "modelopt",
        }
        older = {
            "producer": {"name": "modelopt"},  # readers know the format by this name
            "quantization": {
                "quant_algo": self.quant_algo,
                "kv_cache_quant_algo": None,
                "group_size": NVFP4.block_elems,
                "exclude_modules": kept,
            },
        }
        files = {COMPANION: (json.dumps(older, indent=2) + "\n").encode()}
        return Binding(bounds, stored_leaves(bounds), out, files=files)


def _checked_parts(module: str, spec: TensorSpec) -> tuple[Part, ...]:
    """
    Raises:
        ValueError: a scheme that is not NVFP4 with a second-level scale that multiplies.
    """
    scheme = spec.scheme
    if scheme is not None and scheme != NVFP4 and scheme.second == "inverse_f32":
        raise ValueError(
            "weight_scale_2 is a scale (second=f32), not its reciprocal: the same values in other bytes, and not "
            "always the same after rounding; quantize with quant.second=f32, or export=compressed_tensors"
        )
    if scheme != NVFP4:
        raise ValueError("ModelOpt checkpoints are written as NVFP4 (e2m1/16/e4m3/f32) only")
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

    def __init__(self, leaves: Mapping[str, TensorSpec], dtype: str, family: bool):
        self.leaves, self.dtype, self.family = leaves, dtype, family
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
        return LEFT_OUT.get(match["parameter"] if match else leaf.rpartition(".")[2])

    def matrix(self, module: str) -> Bound | None:
        """The weight of a module, or a stack; None when it cannot be told what its leaves mean."""
        bound = self._stack(module) if self.family and experts.STACK.fullmatch(module) else self._matrix(module)
        if bound is not None:
            self.problems += linears.leaf_problems(bound, self.leaves, f"NVFP4 of {list(bound.spec.shape)}")
        return bound

    def _matrix(self, module: str) -> Bound | None:
        weight = self.leaves.get(f"{module}.weight")
        if f"{module}.pre_quant_scale" in self.leaves:
            return self._refuse(f"{module}.weight", "has a pre_quant_scale for its inputs, which no scheme says")
        if weight is None or len(weight.shape) != 2:
            return self._refuse(f"{module}.weight", "missing or no matrix; NVFP4 needs U8 [out, in/2]")
        spec = TensorSpec((weight.shape[0], 2 * weight.shape[1]), self.dtype, NVFP4)
        if reason := NVFP4.problem(spec.shape):
            return self._refuse(f"{module}.weight", f"holds two elements a byte: {reason}")
        second = self.leaves.get(f"{module}.weight_scale_2")
        return Bound(spec, _parts(module, 1 if second is not None and second.shape == (1,) else 0))

    def _stack(self, name: str) -> Bound | None:
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
