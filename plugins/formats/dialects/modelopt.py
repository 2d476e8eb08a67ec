"""NVIDIA ModelOpt's NVFP4 checkpoints, as `export_hf_checkpoint` lays them out and TensorRT-LLM, vLLM and SGLang read.

    leaf of MODULE     for a matrix [out, in]
    weight             U8 [out, in/2], two E2M1 a byte, the first in the low nibble
    weight_scale       F8_E4M3 [out, in/16]
    weight_scale_2     F32 []: the second-level scale, amax / (448 · 6), which multiplies
    input_scale        F32 []: of activations; left out

compressed-tensors holds the same element and block scales with the reciprocal of the second one. A reciprocal is
rounded, so neither dialect takes the other's scheme. Config: `quantization_config` in config.json, and the older
hf_quant_config.json; both are read and both are written.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pipeline.errors import PlanError, Problem, did_you_mean
from pipeline.formats import Binding, Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_leaves
from plugins.formats.dialects import linears
from plugins.formats.dialects.packings import Single

NVFP4 = Scheme("e2m1", 16, "e4m3", second="f32")
COMPANION = "hf_quant_config.json"
ALGORITHMS = ("NVFP4", "W4A16_NVFP4")
WHERE = "config.json"
PACKED = ("weight_scale", "weight_scale_2")
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
        return ((config.get(COMPANION) or {}).get("producer") or {}).get("name") == "modelopt"

    def decode(self, leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.decode`. A module is quantized when it has packed leaves, whatever the config excludes."""
        algorithm = _algorithm(config)
        if algorithm not in ALGORITHMS:
            text = f"quant_algo is {algorithm!r}{did_you_mean(str(algorithm), ALGORITHMS)}"
            raise PlanError([Problem(WHERE, text)])
        dtype = linears.config_dtype(config)
        packed = dict.fromkeys(n.rpartition(".")[0] for n in leaves if n.rpartition(".")[2] in PACKED)
        found: dict[str, Bound | None] = {}
        problems: list[Problem] = []
        for module in packed:
            weight = leaves.get(f"{module}.weight")
            if weight is None or len(weight.shape) != 2 or f"{module}.pre_quant_scale" in leaves:
                text = "has a pre_quant_scale for its inputs, which no scheme says"
                if f"{module}.pre_quant_scale" not in leaves:
                    text = "missing or no matrix; NVFP4 needs U8 [out, in/2]"
                problems.append(Problem(f"{module}.weight", text))
                found[module] = None
            elif reason := NVFP4.problem((weight.shape[0], 2 * weight.shape[1])):
                problems.append(Problem(f"{module}.weight", f"holds two elements a byte: {reason}"))
                found[module] = None
            else:
                spec = TensorSpec((weight.shape[0], 2 * weight.shape[1]), dtype, NVFP4)
                second = leaves.get(f"{module}.weight_scale_2")
                bound = Bound(spec, _parts(module, 1 if second is not None and second.shape == (1,) else 0))
                problems += linears.leaf_problems(bound, leaves, f"NVFP4 of {list(spec.shape)}")
                found[module] = bound

        def owner(leaf: str) -> str | None:
            module, _, parameter = leaf.rpartition(".")
            return module if module in packed and parameter in ("weight", *PACKED) else None

        matrices, ignored, unknown = linears.sort_out(
            leaves, found, owner, lambda leaf: LEFT_OUT.get(leaf.rpartition(".")[2])
        )
        tensors, more = linears.gather(matrices)
        if problems := [*problems, *unknown, *more]:
            raise PlanError(problems)
        rest = {k: v for k, v in config.items() if k not in ("quantization_config", COMPANION)}
        return Binding(tensors, stored_leaves(tensors), rest, ignored, drop=(COMPANION,))

    def encode(self, tensors: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> Binding:
        """See `Dialect.encode`."""
        bounds, modules, problems = linears.express(tensors, _checked_parts)
        dtype, more = linears.dtype_problems(tensors)
        if problems := [*problems, *more]:
            raise PlanError(problems)
        out = linears.with_dtype({k: v for k, v in config.items() if k != COMPANION}, dtype)
        kept = [m for m, scheme in modules.items() if scheme is None]
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
            "always the same after rounding; quantize with second=f32, or export to compressed-tensors"
        )
    if scheme != NVFP4:
        raise ValueError("ModelOpt checkpoints are written as NVFP4 (e2m1/16/e4m3/f32) only")
    return _parts(module, 0)


def _parts(module: str, second_dims: int) -> tuple[Part, ...]:
    return (
        Part(f"{module}.weight", "codes"),
        Part(f"{module}.weight_scale", "scales"),
        Part(f"{module}.weight_scale_2", "second", packing=Single("F32", second_dims)),
    )


def _algorithm(config: Mapping[str, Any]) -> Any:
    """quant_algo of config.json, or else of hf_quant_config.json."""
    given = config.get("quantization_config") or {}
    if "quant_algo" not in given:
        given = (config.get(COMPANION) or {}).get("quantization") or {}
    return given.get("quant_algo")
