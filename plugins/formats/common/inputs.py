"""Scales of inputs as leaves of linear modules, which two dialects have."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from pipeline.errors import Problem, some
from pipeline.method import Method
from pipeline.tensors.binding import Bound
from pipeline.tensors.inputs import InputScales, as_one
from pipeline.tensors.scheme import Scheme
from pipeline.tensors.spec import TensorSpec

NEEDED = "the weights do not need it"
USED = f"scale of inputs, which activations_scales=calibrated uses; {NEEDED}"


def unrounded(option: str) -> str:
    """Why what a source says of inputs whose scales are made when they are seen is left out."""
    return f"its readers round inputs of matrices so, and models and exports here with activations={option}; {NEEDED}"


def wanted(activations: Method, scales: InputScales | None) -> Scheme:
    """The scheme of inputs under scales that are to be written.

    Raises:
        ValueError: there are none, or they are for other inputs; says what makes some. ConfigError: see `as_one`.
    """
    assert activations.scheme is not None
    scheme = as_one(activations.scheme)
    if scales is None:
        text = "calibrated scales are to be written, and the checkpoint has none; calibrate=absmax makes some"
        raise ValueError(text)
    if scales.scheme != scheme:
        wants, has = (TensorSpec((), "F32", s).encoding for s in (scheme, scales.scheme))
        raise ValueError(f"are to be {wants}, and the checkpoint has scales for {has}; calibrate=absmax makes others")
    return scheme


def written(
    bounds: Mapping[str, Bound], scales: InputScales, leaf_of: Callable[[str], Iterable[str]], shape: tuple[int, ...]
) -> tuple[dict[str, bytes], dict[str, TensorSpec], list[Problem]]:
    """Leaves of one fp32 value each, their specs, and what has no scale.

    Args:
        leaf_of: of a packed tensor's name, the leaves for its scale.
    """
    packed = [name for name, bound in bounds.items() if bound.spec.scheme is not None]
    constants: dict[str, bytes] = {}
    for name in packed:
        if name in scales.values:
            value = np.array(scales.values[name], "<f4").tobytes()
            constants |= dict.fromkeys(leaf_of(name), value)
    problems = []
    if missing := [name for name in packed if name not in scales.values]:
        text = f"nothing is known of the inputs of {some(missing)}, and readers want a scale; a rule for `keep`"
        problems.append(Problem("activations_scales", f"{text} leaves them plain"))
    return constants, dict.fromkeys(constants, TensorSpec(shape, "F32")), problems


def modules(bound: Bound) -> tuple[str, ...]:
    """Those that a packed tensor lies in."""
    return tuple(dict.fromkeys(part.leaf.rpartition(".")[0] for part in bound.parts))
