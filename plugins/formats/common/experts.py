"""gpt-oss's stacks of experts as the linear modules that quantization libraries see in them.

    logical tensor                               module, parameter
    ….experts.gate_up_proj       [E, 2·n, in]    ….experts.{e}.gate_proj, weight [n, in]: the even rows
                                                 ….experts.{e}.up_proj, weight [n, in]: the odd rows
    ….experts.gate_up_proj_bias  [E, 2·n]        bias [n] of the same two
    ….experts.down_proj          [E, out, in]    ….experts.{e}.down_proj, weight [out, in]
    ….experts.down_proj_bias     [E, out]        bias [out] of the same

That is what llm-compressor makes of gpt-oss (`GptOssExpertMLP` in its modeling/moe/gpt_oss.py, 2026-08), under the
names that per-expert checkpoints have in vLLM (`make_expert_params_mapping`). A scale that all rows share is stored
with both. Only of gpt-oss is it known that gate and up take turns, and that files hold plain stacks as [E, in, out]:
stacks of other models are neither taken apart nor put together.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from pipeline.errors import Problem, some
from pipeline.tensors.binding import Bound, Part
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.steps import Index, Lane, Pick, Transpose
from plugins.facts.gpt_oss import TURNS, is_gpt_oss

STACK = re.compile(r"(?P<stem>.*\bexperts)\.(?P<matrix>gate_up_proj|down_proj)(?P<bias>_bias)?")
EXPERT = re.compile(
    r"(?P<stem>.*\bexperts)\.(?P<e>0|[1-9]\d{0,8})\.(?P<matrix>gate_proj|up_proj|down_proj)\.(?P<parameter>weight|bias)"
)
MATRIX = {name: (matrix, phase) for matrix, names in TURNS.items() for phase, name in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Module:
    """A linear module that holds (a part of) a tensor: expert `at`, of whose rows it has every `turns`-th from `phase`
    on."""

    name: str
    at: int | None = None
    phase: int = 0
    turns: int = 1

    def place(self, spec: TensorSpec, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        """`parts` of this module's own matrix or vector, as parts of the tensor of `spec`."""
        return tuple(self._place(spec, part) for part in parts)

    def _place(self, spec: TensorSpec, part: Part) -> Part:
        shared = part.component == "second" or (
            part.component in ("scales", "zeros") and spec.scheme is not None and not spec.scheme.block_rows
        )
        picks: tuple[Pick, ...] = () if self.at is None else (Index(self.at),)
        if self.turns > 1 and not shared:
            picks += (Lane(1 - len(spec.shape), self.phase, self.turns),)
        return replace(part, picks=picks)


@dataclass(frozen=True, slots=True)
class Home:
    """The modules that hold a logical tensor, the parameter it is in each, and the shape it has there."""

    modules: tuple[Module, ...]
    parameter: str
    shape: tuple[int, ...]

    def parts(self, spec: TensorSpec, parts_of: Callable[[str], tuple[Part, ...]]) -> tuple[Part, ...]:
        """The parts of every module, `parts_of` of its name.

        Raises:
            ValueError: the scales of `spec` cannot be taken apart as the rows are.
        """
        scheme, stacked = spec.scheme, self.modules[0].at is not None
        if scheme is not None and stacked and scheme.whole_only:
            raise ValueError("the scales of all experts are coded together and cannot be taken apart")
        if scheme is not None and self.modules[0].turns > 1 and scheme.block_rows > 1:
            raise ValueError(
                f"{scheme.block_rows} rows share a scale, and gate and up rows, which are stored apart, take turns in "
                "them; quantize with quant.block_rows=1"
            )
        return tuple(part for module in self.modules for part in module.place(spec, parts_of(module.name)))


def is_stack(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> bool:
    """Whether a tensor is one of gpt-oss's stacks, by its name and its number of dimensions."""
    return is_gpt_oss(config) and stack_of(name, shape) is not None


def stack_of(name: str, shape: tuple[int, ...]) -> re.Match[str] | None:
    """The match of `STACK` when `name` is a stack of matrices or of biases by its shape as well."""
    stack = STACK.fullmatch(name)
    return stack if stack is not None and len(shape) == (2 if stack["bias"] else 3) else None


def plain_parts(name: str, spec: TensorSpec, config: Mapping[str, Any]) -> tuple[Part, ...]:
    """A leaf of a plain tensor's own name, as Hugging Face's names mean it: gpt-oss's stacked matrices are transposed
    in it, [E, in, out] (`GptOssExperts` of transformers)."""
    turned = len(spec.shape) == 3 and is_stack(name, spec.shape, config)
    return (Part(name, steps=(Transpose(),) if turned else ()),)


def plain_bound(name: str, leaf: TensorSpec, config: Mapping[str, Any]) -> Bound:
    """A plain leaf as a logical tensor: the inverse of `plain_parts`."""
    parts = plain_parts(name, leaf, config)
    spec = replace(leaf, shape=(*leaf.shape[:-2], leaf.shape[-1], leaf.shape[-2])) if parts[0].turned else leaf
    return Bound(spec, parts)


def are_unturned(leaves: Mapping[str, TensorSpec], config: Mapping[str, Any]) -> bool:
    """Whether plain stacks lie as [E, out, in], which `export=plain` and `export=numpy` wrote before they transposed.

    Shapes tell: a folder's stacks all lie alike, gate_up_proj is square only where hidden is twice inter, down_proj
    only where both are equal, and those exports hold both. Where none tells, stacks are what their names mean.
    """
    inter, hidden = (config.get(key) for key in ("intermediate_size", "hidden_size"))
    if not is_gpt_oss(config) or type(inter) is not int or type(hidden) is not int:
        return False
    unturned = {"gate_up_proj": (2 * inter, hidden), "down_proj": (hidden, inter)}
    for name, spec in leaves.items():
        stack = stack_of(name, spec.shape)
        if stack is None or stack["bias"]:
            continue
        rows, n = unturned[stack["matrix"]]
        if rows != n:
            return spec.shape[1:] == (rows, n)
    return False


def home_of(name: str, shape: tuple[int, ...]) -> Home | None:
    """The modules of a stack, or None when it is none, or has no even number of gate and up rows."""
    stack = stack_of(name, shape)
    if stack is None or shape[1] % len(names := TURNS[stack["matrix"]]):
        return None
    turns = len(names)
    modules = tuple(
        Module(f"{stack['stem']}.{e}.{n}", e, phase, turns) for e in range(shape[0]) for phase, n in enumerate(names)
    )
    return Home(modules, "bias" if stack["bias"] else "weight", (shape[1] // turns, *shape[2:]))


def gather(matrices: Mapping[str, Bound]) -> tuple[dict[str, Bound], list[Problem]]:
    """Stacks put together; the rest as it is. Keys are `MODULE.weight`, `MODULE.bias` or any other leaf name.

    A stack takes the place of its first module. Matrices whose scales are coded together cannot be stacked and stay
    one by one.
    """
    tensors: dict[str, Bound] = {}
    stacks: dict[str, dict[tuple[int, int], Bound]] = {}
    for name, bound in matrices.items():
        match = EXPERT.fullmatch(name)
        if match is None or (bound.spec.scheme is not None and bound.spec.scheme.whole_only):
            tensors[name] = bound
            continue
        matrix, phase = MATRIX[match["matrix"]]
        logical = f"{match['stem']}.{matrix}" + ("_bias" if match["parameter"] == "bias" else "")
        tensors.setdefault(logical, bound)
        stacks.setdefault(logical, {})[int(match["e"]), phase] = bound
    problems: list[Problem] = []
    for logical, found in stacks.items():
        tensors[logical], more = _stack(logical, found)
        problems += more
    return tensors, problems


def _stack(logical: str, found: Mapping[tuple[int, int], Bound]) -> tuple[Bound, list[Problem]]:
    """One tensor of the modules `found` by expert and phase, and what does not fit."""
    stack = STACK.fullmatch(logical)
    assert stack is not None
    names = TURNS[stack["matrix"]]
    count, (origin, first) = max(e for e, _ in found) + 1, min(found.items(), key=lambda item: item[0])
    problems = []
    if len(found) < count * len(names):  # who says how many there are is the last one's name: not all may be there
        every = ((e, phase) for e in range(count) for phase in range(len(names)))
        missing = list(islice((f"{e}.{names[phase]}" for e, phase in every if (e, phase) not in found), 9))
        listed = some(missing, count * len(names) - len(found))
        problems.append(Problem(logical, f"of {count} experts there is no {listed}"))
    for key, bound in found.items():
        if bound.spec != first.spec:
            given, want = (f"{s.encoding} {list(s.shape)}" for s in (bound.spec, first.spec))
            this, other = (f"{e}.{names[phase]}" for e, phase in (key, origin))
            text = f"{this} is {given}, {other} {want}; the experts of a layer are one tensor"
            problems.append(Problem(logical, text))
    scheme = first.spec.scheme
    if scheme is not None and len(names) > 1 and scheme.block_rows > 1:
        text = (
            f"gate and up rows share scales {scheme.block_rows} by {scheme.block_rows}; as one tensor they take turns"
        )
        problems.append(Problem(logical, f"{text}, and no scheme says that"))
    rows, *rest = first.spec.shape
    spec = replace(first.spec, shape=(count, rows * len(names), *rest))
    parts = [
        part
        for (e, phase), bound in sorted(found.items(), key=lambda item: item[0])
        for part in Module("", e, phase, len(names)).place(spec, bound.parts)
    ]
    return Bound(spec, tuple(parts)), problems
