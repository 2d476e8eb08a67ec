"""Linear modules: what the dialects of quantization libraries have in common, whatever the model.

Those libraries quantize modules with a 2-D `weight`, so their files name leaves `MODULE.weight…`. A matrix
`MODULE.weight` is one module, a stack of experts several (see `experts`). Everything else keeps its name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from pipeline.errors import Problem, strangers
from pipeline.rules import EXTRA
from pipeline.tensors.binding import Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_spec
from plugins.facts import dtypes
from plugins.facts.gpt_oss import is_gpt_oss
from plugins.formats.common import experts
from plugins.formats.common.experts import Home, Module

# Modules of embeddings and routers, which are no linear ones: transformers 5.23, with compressed-tensors 0.20 as with
# bitsandbytes 0.50, fails on packed ones, or makes random ones.
NOT_LINEAR = ("embed_tokens", "router", "gate")
WHERE = "MODULE.weight of two dimensions, or of gpt-oss ….experts.{gate_up_proj,down_proj} of three"

PartsOf = Callable[[str, TensorSpec], tuple[Part, ...]]
"""Parts of a quantized matrix: (module, spec [out, in] with a scheme) → parts, or raises ValueError with the reason."""


def express(
    tensors: Mapping[str, TensorSpec], config: Mapping[str, Any], parts_of: PartsOf, take_apart: bool = True
) -> tuple[dict[str, Bound], dict[str, Scheme | None], list[Problem]]:
    """Parts of all `tensors`; every linear module and the scheme of its weight; what cannot be expressed.

    gpt-oss's experts are taken apart when any of them is quantized; else they stay stacks as Hugging Face has them,
    [E, in, out], because there is no module to name, and readers take them so. Without `take_apart` they stay stacks
    in any case, and `parts_of` is asked for the parts of (name, spec [E, out, in]). A checkpoint in which nothing is
    quantized is refused: nothing in it would say whose names these are.
    """
    stacks = {n for n, s in tensors.items() if s.scheme and experts.is_stack(n, s.shape, config)}
    apart = bool(stacks) and take_apart
    bounds: dict[str, Bound] = {}
    modules: dict[str, Scheme | None] = {}
    problems: list[Problem] = []
    for name, spec in tensors.items():
        home = _home_of(name, spec.shape, apart)
        if name in stacks and not apart:
            home = Home((Module(name),), "weight", spec.shape)
        if home is not None and home.parameter == "weight":
            modules |= dict.fromkeys((m.name for m in home.modules), spec.scheme)
        if spec.scheme is None:
            parts = experts.plain_parts(name, spec, config)
            if home is not None:
                parts = home.parts(spec, lambda module, p=home.parameter: (Part(f"{module}.{p}"),))  # type: ignore[misc]
            bounds[name] = Bound(spec, parts)
            continue
        if home is None or home.parameter != "weight":
            text = f"{spec.encoding} of shape {list(spec.shape)} is no matrix of a linear module: {WHERE}"
            if experts.stack_of(name, spec.shape) and not is_gpt_oss(config):
                model = f"of model_type {config.get('model_type')!r}"
                text = f"is quantized as {spec.encoding}: how experts {model} lie in it is not known, only gpt_oss's"
            problems.append(Problem(name, text))
            continue
        if (module := home.modules[0].name).rpartition(".")[2] in NOT_LINEAR:
            rule = f"--rule {name}=none, or '{EXTRA}=[{{match: {name}, to: none}}]', makes it plain"
            text = f"is packed as {spec.encoding}, and {module} is no linear module: no reader loads it so; {rule}"
            problems.append(Problem(name, text))
            continue
        matrix = replace(spec, shape=home.shape)
        try:
            if reason := spec.scheme.problem(matrix.shape):
                raise ValueError(reason)
            bounds[name] = Bound(spec, home.parts(spec, lambda module, m=matrix: parts_of(module, m)))  # type: ignore[misc]
        except ValueError as why:
            problems.append(Problem(name, f"is quantized as {spec.encoding}: {why}"))
    if not any(spec.scheme for spec in tensors.values()):
        text = "no tensor is quantized; quantize some (quant=…), or export plain values with another dialect"
        problems.append(Problem("export.dialect", text))
    return bounds, modules, problems


def gather(matrices: Mapping[str, Bound], config: Mapping[str, Any]) -> tuple[dict[str, Bound], list[Problem]]:
    """The inverse of taking stacks apart: logical tensors of matrices and plain leaves, by leaf name."""
    if not is_gpt_oss(config):
        return dict(matrices), []
    turned = {
        name: bound if bound.spec.scheme is not None else experts.plain_bound(name, bound.spec, config)
        for name, bound in matrices.items()
    }
    return experts.gather(turned)


def _home_of(name: str, shape: tuple[int, ...], apart: bool) -> Home | None:
    """Where a tensor lives, or None when it is not a parameter of linear modules."""
    if name.endswith(".weight") and len(shape) == 2:
        return Home((Module(name.removesuffix(".weight")),), "weight", shape)
    return experts.home_of(name, shape) if apart else None


def sort_out(
    leaves: Mapping[str, TensorSpec],
    found: Mapping[str, Bound | None],
    owner: Callable[[str], str | None],
    left_out: Callable[[str], str | None],
    aside: Collection[str] = (),
    whole: Collection[str] = (),
) -> tuple[dict[str, Bound], dict[str, str], list[Problem]]:
    """Every leaf of a source in its place: matrices and plain leaves in order, leaves left out, leaves without a place.

    Args:
        leaves: all of them.
        found: quantized modules; None for one that was reported as broken.
        owner: the quantized module that a leaf belongs to, or None.
        left_out: the reason why a leaf that is no part of a matrix is left out, or None.
        aside: leaves that are accounted for elsewhere.
        whole: modules that are tensors by their own names (stacks), not `MODULE.weight`.
    """
    of_module = {p.leaf: module for module, bound in found.items() if bound for p in bound.parts}
    matrices: dict[str, Bound] = {}
    ignored: dict[str, str] = {}
    unknown = []
    for name, spec in leaves.items():
        bound = found.get(of_module.get(name, ""))
        if bound is not None:
            module = of_module[name]
            matrices[module if module in whole else f"{module}.weight"] = bound
        elif reason := left_out(name):
            ignored[name] = reason
        elif (mine := owner(name)) is None:
            matrices[name] = Bound(spec, (Part(name),))
        elif name not in aside and found.get(mine):
            unknown.append(name)
    return matrices, ignored, list(strangers(unknown, of_module, "is no part of its module's format"))


def leaf_problems(bound: Bound, leaves: Mapping[str, TensorSpec], because: str) -> list[Problem]:
    """What is wrong with the leaves that `bound` names; `because` says where the expectation comes from."""
    problems = []
    for part in {p.leaf: p for p in bound.parts}.values():
        want, given = stored_spec(part, bound.spec), leaves.get(part.leaf)
        if given is None:
            problems.append(Problem(part.leaf, f"missing; expected {want.dtype} {list(want.shape)} ({because})"))
            continue
        if given.dtype != want.dtype:
            problems.append(Problem(part.leaf, f"has dtype {given.dtype}, expected {want.dtype} ({because})"))
        if given.shape != want.shape:
            problems.append(
                Problem(part.leaf, f"has shape {list(given.shape)}, expected {list(want.shape)} ({because})")
            )
    return problems


def config_dtype(config: Mapping[str, object]) -> str:
    """What quantized tensors decode to: config.json's `dtype` (`torch_dtype` before transformers 4.56), else BF16."""
    stated = str(config.get("dtype") or config.get("torch_dtype") or dtypes.DEFAULT).removeprefix("torch.")
    return dtypes.FROM_TORCH.get(stated, "BF16")


def dtype_problems(tensors: Mapping[str, TensorSpec]) -> tuple[str | None, list[Problem]]:
    """The one dtype that all quantized tensors decode to, as config.json spells it, and those that differ from it."""
    found = {name: spec.dtype for name, spec in tensors.items() if spec.scheme is not None}
    if not found:
        return None, []
    counts = list(found.values())
    common = max(dict.fromkeys(counts), key=counts.count)
    problems = [
        Problem(name, f"decodes to {dtype}, others to {common}; config.json states one dtype for all")
        for name, dtype in found.items()
        if dtype != common
    ]
    return dtypes.TORCH.get(common, dtypes.DEFAULT), problems


def with_dtype(config: Mapping[str, object], dtype: str | None) -> dict[str, object]:
    """`config` without a quantization_config, stating `dtype` under the keys it has (`dtype` if it has none)."""
    out = {k: v for k, v in config.items() if k != "quantization_config"}
    if dtype is not None:
        out |= {
            key: dtype
            for key in ("dtype", "torch_dtype")
            if key in out or (key == "dtype" and "torch_dtype" not in out)
        }
    return out
