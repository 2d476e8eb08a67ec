"""Checkpoints of quantization libraries that are read and not written: the same values go out as another dialect.

Each quantized module is a few leaves `MODULE.…`, and config.json says once how all of them are quantized. Modules
without such leaves are plain.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn

from pipeline.errors import ConfigError, PlanError, Problem
from pipeline.formats import PEEKED
from pipeline.settings import LARGEST
from pipeline.tensors.binding import Binding, Bound
from pipeline.tensors.spec import TensorSpec
from pipeline.tensors.views import stored_leaves
from plugins.facts.dtypes import SCALES
from plugins.formats.common import linears

WHERE = "config.json quantization_config"
PLAIN = ("bias",)  # of what a quantized module has, the tensors of their own; all else is part of its format


def arguments(config: Mapping[str, Any], companion: str = "") -> Mapping[str, Any]:
    """What config.json says of quantization, or else the file that a library has beside it."""
    found = config.get("quantization_config") or config.get(companion)
    return found if isinstance(found, Mapping) else {}


def is_of(method: str, leaves: Iterable[str], config: Mapping[str, Any], companion: str) -> bool:
    """Whether a source is a library's: config.json names its method, or says nothing where there are words of packed
    modules and the library's own file, as in the first years of both."""
    if config.get("quantization_config"):
        return arguments(config).get("quant_method") == method
    return isinstance(config.get(companion), Mapping) and any(name.endswith(".qweight") for name in leaves)


def decode(
    leaves: Mapping[str, TensorSpec],
    config: Mapping[str, Any],
    marks: Collection[str],
    matrix: Callable[[str], Bound],
    says: str,
    constants: Mapping[str, bytes] | None = None,
    left_out: Mapping[str, str] | None = None,
    companion: str = "",
) -> Binding:
    """Bind the leaves of a source.

    Args:
        marks: parameters that quantized modules alone have.
        matrix: of a module; raises ValueError where what it has cannot be told.
        says: of what format it is, for errors.
        constants: leaves whose content was looked at, and is known.
        left_out: parameter → why it is left out.
        companion: the library's own file beside config.json.

    Raises:
        PlanError: leaves missing, of a wrong shape or dtype, or not accounted for; all of them at once.
    """
    problems: list[Problem] = []
    found: dict[str, Bound | None] = {}
    for module in dict.fromkeys(n.rpartition(".")[0] for n in leaves if n.rpartition(".")[2] in marks):
        try:
            bound = found[module] = matrix(module)
        except (ValueError, ConfigError) as why:
            problems.append(Problem(f"{module}.weight", str(why)))
            found[module] = None
        else:
            problems += linears.leaf_problems(bound, leaves, f"{says} of {list(bound.spec.shape)}")

    def owner(leaf: str) -> str | None:
        module, _, parameter = leaf.rpartition(".")
        return module if module in found and parameter not in PLAIN else None

    known = constants or {}
    reasons = left_out or {}
    matrices, ignored, unknown = linears.sort_out(
        leaves, found, owner, lambda leaf: reasons.get(leaf.rpartition(".")[2]), known
    )
    tensors, more = linears.gather(matrices, config)
    if problems := [*problems, *unknown, *more]:
        raise PlanError(problems)
    stored = {**stored_leaves(tensors), **{n: leaves[n] for n in known}}
    rest = {k: v for k, v in config.items() if k not in ("quantization_config", PEEKED, companion)}
    return Binding(tensors, stored, rest, ignored, known)


def is_group_size(given: Any) -> bool:
    """Columns of a group, or -1 for whole rows."""
    return type(given) is int and (0 < given <= LARGEST or given == -1)


def matrix_shape(module: str, leaves: Mapping[str, TensorSpec], leaf: str) -> tuple[int, int]:
    """The shape of a leaf of words.

    Raises:
        ValueError: it is missing, or no matrix.
    """
    spec = leaves.get(f"{module}.{leaf}")
    if spec is None or len(spec.shape) != 2:
        given = "missing" if spec is None else f"{spec.dtype} {list(spec.shape)}"
        raise ValueError(f"{leaf} is {given}; a matrix is expected")
    return spec.shape[0], spec.shape[1]


def scale_of(module: str, leaves: Mapping[str, TensorSpec], leaf: str) -> str:
    """What a scheme calls the dtype of a leaf of scales.

    Raises:
        ValueError: it is missing, or of another dtype.
    """
    spec = leaves.get(f"{module}.{leaf}")
    if spec is None or spec.dtype not in SCALES:
        given = "missing" if spec is None else f"of dtype {spec.dtype}"
        raise ValueError(f"{leaf} is {given} (allowed: {', '.join(SCALES)})")
    return SCALES[spec.dtype]


def refuse(name: str) -> NoReturn:
    """
    Raises:
        PlanError: always.
    """
    text = f"{name} is read, and not written; compressed_tensors holds the same values, and export=auto finds what can"
    raise PlanError([Problem("export.dialect", text)])
