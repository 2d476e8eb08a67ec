"""Linear modules: what the dialects of quantization libraries have in common, whatever the model.

Those libraries quantize modules with a 2-D `weight`, so their files name leaves `MODULE.weight…`. A matrix
`MODULE.weight` is one module; a stack of experts is one module an expert:

    logical tensor                               module, parameter
    ….experts.gate_up_proj       [E, out, in]    ….experts.{e}.gate_up_proj, weight [out, in]
    ….experts.down_proj          [E, out, in]    ….experts.{e}.down_proj, weight
    ….experts.gate_up_proj_bias  [E, out]        ….experts.{e}.gate_up_proj, bias [out]

That is how per-expert checkpoints of other families name theirs (Mixtral, Qwen-MoE: `experts.{e}.down_proj`), with the
fused matrix left whole, gate and up rows interleaved as they are. Joining is the inverse, and happens only where all
of a layer's experts have these two matrices and nothing else. Everything that is no such matrix keeps its name.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pipeline.errors import Problem, did_you_mean
from pipeline.formats import Bound, Part
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_spec

STACK = re.compile(r"(?P<stem>.*\bexperts)\.(?P<matrix>gate_up_proj|down_proj)(?P<bias>_bias)?")
EXPERT = re.compile(r"(?P<stem>.*\bexperts)\.(?P<e>0|[1-9]\d*)\.(?P<matrix>[^.]+)\.(?P<parameter>weight|bias)")
STACKED = frozenset({"gate_up_proj", "down_proj"})
# Hints cost a comparison with every name; a wholly foreign checkpoint gets them for its first leaves only.
MOST_HINTS = 12

PartsOf = Callable[[str, TensorSpec], tuple[Part, ...]]
"""Parts of a quantized matrix: (module, spec [out, in] with a scheme) → parts, or raises ValueError with the reason."""


@dataclass(frozen=True, slots=True)
class Home:
    """The modules that hold a logical tensor, one an expert if `stacked`, and the parameter it is in each."""

    modules: tuple[str, ...]
    parameter: str
    stacked: bool

    def spread(self, parts_of: Callable[[str], tuple[Part, ...]]) -> tuple[Part, ...]:
        """The parts of every module."""
        if not self.stacked:
            return parts_of(self.modules[0])
        return tuple(replace(p, at=e) for e, module in enumerate(self.modules) for p in parts_of(module))


def home_of(name: str, shape: tuple[int, ...]) -> Home | None:
    """Where a tensor lives, or None when it is not a parameter of linear modules."""
    if name.endswith(".weight") and len(shape) == 2:
        return Home((name.removesuffix(".weight"),), "weight", False)
    stack = STACK.fullmatch(name)
    if stack is None or len(shape) != (2 if stack["bias"] else 3):
        return None
    modules = tuple(f"{stack['stem']}.{e}.{stack['matrix']}" for e in range(shape[0]))
    return Home(modules, "bias" if stack["bias"] else "weight", True)


def express(
    tensors: Mapping[str, TensorSpec], parts_of: PartsOf
) -> tuple[dict[str, Bound], dict[str, Scheme | None], list[Problem]]:
    """Parts of all `tensors`; every linear module and the scheme of its weight; what cannot be expressed.

    A checkpoint in which nothing is quantized is refused: nothing in it would say whose names these are.
    """
    bounds: dict[str, Bound] = {}
    modules: dict[str, Scheme | None] = {}
    problems: list[Problem] = []
    for name, spec in tensors.items():
        home = home_of(name, spec.shape)
        if home is not None and home.parameter == "weight":
            modules |= dict.fromkeys(home.modules, spec.scheme)
        if spec.scheme is None:
            if home is None:
                bounds[name] = Bound(spec, (Part(name),))
            else:
                parameter = home.parameter
                bounds[name] = Bound(spec, home.spread(lambda m, p=parameter: (Part(f"{m}.{p}"),)))  # type: ignore[misc]
            continue
        if home is None or home.parameter != "weight":
            where = "MODULE.weight of two dimensions or ….experts.{gate_up_proj,down_proj} of three"
            problems.append(
                Problem(name, f"{spec.encoding} of shape {list(spec.shape)} is no matrix of a linear module; {where}")
            )
            continue
        matrix = replace(spec, shape=spec.shape[-2:])
        try:
            if reason := spec.scheme.problem(matrix.shape):
                raise ValueError(reason)
            if home.stacked and spec.scheme.whole_only:
                raise ValueError("the scales of all experts are coded together and cannot be taken apart")
            bounds[name] = Bound(spec, home.spread(lambda m, s=matrix: parts_of(m, s)))  # type: ignore[misc]
        except ValueError as why:
            problems.append(Problem(name, f"is quantized as {spec.encoding}: {why}"))
    if not any(spec.scheme for spec in tensors.values()):
        text = "no tensor is quantized; quantize some (quant=…), or export plain values with another dialect"
        problems.append(Problem("export.dialect", text))
    return bounds, modules, problems


def gather(matrices: Mapping[str, Bound]) -> tuple[dict[str, Bound], list[Problem]]:
    """Stacks of experts joined; the rest as it is. Keys are `MODULE.weight`, `MODULE.bias` or any other leaf name.

    A tensor takes the place of its first expert. Matrices whose scales are coded together cannot be stacked and stay
    one by one.
    """
    found = {name: EXPERT.fullmatch(name) for name in matrices}
    names: dict[str, set[str]] = {}
    for match in found.values():
        if match:
            names.setdefault(match["stem"], set()).add(match["matrix"])
    tensors: dict[str, Bound] = {}
    stacks: dict[str, dict[int, Bound]] = {}
    for name, bound in matrices.items():
        match = found[name]
        whole_only = bound.spec.scheme is not None and bound.spec.scheme.whole_only
        if match is None or whole_only or not names[match["stem"]] <= STACKED:
            tensors[name] = bound
            continue
        logical = f"{match['stem']}.{match['matrix']}" + ("_bias" if match["parameter"] == "bias" else "")
        tensors.setdefault(logical, bound)
        stacks.setdefault(logical, {})[int(match["e"])] = bound
    problems = []
    for logical, experts in stacks.items():
        first = experts[min(experts)]
        missing = [e for e in range(max(experts) + 1) if e not in experts]
        if missing:
            text = f"experts {missing[:8]} are missing of {max(experts) + 1}"
            problems.append(Problem(logical, text))
        for e, bound in experts.items():
            if bound.spec != first.spec:
                given, want = (f"{s.encoding} {list(s.shape)}" for s in (bound.spec, first.spec))
                text = f"expert {e} is {given}, expert {min(experts)} {want}; the experts of a layer are one tensor"
                problems.append(Problem(logical, text))
        parts = tuple(replace(p, at=e) for e in sorted(experts) for p in experts[e].parts)
        tensors[logical] = Bound(replace(first.spec, shape=(len(experts), *first.spec.shape)), parts)
    return tensors, problems


def sort_out(
    leaves: Mapping[str, TensorSpec],
    found: Mapping[str, Bound | None],
    owner: Callable[[str], str | None],
    left_out: Callable[[str], str | None],
    aside: Collection[str] = (),
) -> tuple[dict[str, Bound], dict[str, str], list[Problem]]:
    """Every leaf of a source in its place: matrices and plain leaves in order, leaves left out, leaves without a place.

    Args:
        leaves: all of them.
        found: quantized modules; None for one that was reported as broken.
        owner: the quantized module that a leaf belongs to, or None.
        left_out: the reason why a leaf that is no part of a matrix is left out, or None.
        aside: leaves that are accounted for elsewhere.
    """
    of_module = {p.leaf: module for module, bound in found.items() if bound for p in bound.parts}
    matrices: dict[str, Bound] = {}
    ignored: dict[str, str] = {}
    unknown = []
    for name, spec in leaves.items():
        bound = found.get(of_module.get(name, ""))
        if bound is not None:
            matrices[f"{of_module[name]}.weight"] = bound
        elif reason := left_out(name):
            ignored[name] = reason
        elif (module := owner(name)) is None:
            matrices[name] = Bound(spec, (Part(name),))
        elif name not in aside and found.get(module):
            unknown.append(name)
    known = list(of_module)
    text = "is no part of its module's format"
    return (
        matrices,
        ignored,
        [
            Problem(name, f"{text}{did_you_mean(name, known) if i < MOST_HINTS else ''}")
            for i, name in enumerate(unknown)
        ],
    )


def leaf_problems(bound: Bound, leaves: Mapping[str, TensorSpec], because: str) -> list[Problem]:
    """What is wrong with the leaves that `bound` names; `because` says where the expectation comes from."""
    problems = []
    for part in bound.parts:
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
    stated = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return {"float16": "F16", "float32": "F32"}.get(stated, "BF16")


def dtype_problems(tensors: Mapping[str, TensorSpec]) -> tuple[str | None, list[Problem]]:
    """The one dtype that all quantized tensors decode to, as config.json spells it, and those that differ from it."""
    dtypes = {name: spec.dtype for name, spec in tensors.items() if spec.scheme is not None}
    if not dtypes:
        return None, []
    counts = list(dtypes.values())
    common = max(dict.fromkeys(counts), key=counts.count)
    problems = [
        Problem(name, f"decodes to {dtype}, others to {common}; config.json states one dtype for all")
        for name, dtype in dtypes.items()
        if dtype != common
    ]
    return {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}.get(common, "bfloat16"), problems


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
