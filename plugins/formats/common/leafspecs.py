"""What every container demands of a leaf before it is written, and of a shape that a file states."""

from collections.abc import Iterable
from typing import Any

from pipeline.errors import Problem, did_you_mean
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec

LARGEST = 2**63 - 1
MAX_DIMS = 64  # NumPy 2, `NPY_MAXDIMS`


def is_count(value: Any) -> bool:
    """Whether a JSON value is an integer that can count bytes; a bool, an int to isinstance, is not."""
    return type(value) is int and 0 <= value <= LARGEST


def is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_DIMS and all(map(is_count, value))


def leaf_problems(name: str, spec: TensorSpec) -> Iterable[Problem]:
    """Why a leaf cannot be written as a plain array."""
    try:
        name.encode()
    except UnicodeEncodeError as e:
        yield Problem(repr(name), f"cannot be written as UTF-8: character {e.start} is a lone surrogate")
    if spec.scheme is not None:
        yield Problem(name, f"is quantized ({spec.encoding}); a dialect must split it into plain leaves first")
    elif spec.dtype not in DTYPE_BITS:
        yield Problem(name, f"dtype {spec.dtype!r} is unknown{did_you_mean(spec.dtype, DTYPE_BITS, 30)}")
    elif spec.size * DTYPE_BITS[spec.dtype] % 8:
        yield Problem(name, f"{spec.dtype}{list(spec.shape)} does not fill whole bytes")
