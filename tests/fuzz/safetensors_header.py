"""Headers of safetensors files: accepted where the `safetensors` package accepts them, and with the same tensors.

We are stricter in the ways that `STRICTER` of the hostile files lists and no others: a header that the package accepts
and we refuse must be refused for one of those reasons.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, deserialize

from pipeline.errors import SourceError
from pipeline.tensors.spec import DTYPE_BITS
from plugins.formats.safetensors.header import parse_header
from tests.cases.hostile.safetensors_files import FILES, GOOD, STRICTER
from tests.fuzz.driver import Files
from tests.fuzz.mutate import NUMBERS, changed_bytes, changed_json, one, text

SEEDS = [d for d, _ in (*FILES.values(), *STRICTER.values()) if len(d) < 4000]
STRICTER_REASONS = (
    "header begins with", "header ends with", "duplicate key", "__metadata__ must map", "must have exactly the fields",
    "overflows the size of any file", "shape must be a list", "dimensions; at most", "nested too deeply",
)  # fmt: skip


def file_of(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def make(rng: random.Random) -> Files:
    """A known file with its header changed, and its length made right again, mostly; or a header of any numbers."""
    kind = rng.random()
    if kind < 0.25:
        return {"f": file_of(json.dumps(_loose(rng)).encode(), bytes(rng.randrange(40)))}
    data = GOOD if kind < 0.5 else one(rng, SEEDS)
    data = data if len(data) > 8 else GOOD
    n = int.from_bytes(data[:8], "little")
    header, rest = data[8 : 8 + n], data[8 + n :]
    if rng.random() < 0.4:
        try:
            header = changed_json(rng, json.loads(header))
        except (ValueError, RecursionError):
            header = changed_bytes(rng, header, GOOD)
    else:
        header = text(rng, header.decode("latin-1")).encode("latin-1")
    whole = file_of(header, rest)
    return {"f": changed_bytes(rng, whole) if rng.random() < 0.1 else whole}


def _loose(rng: random.Random) -> dict[str, Any]:
    """A header of the right form with any numbers, many of them near the truth."""
    found: dict[str, Any] = {}
    at = 0
    for i in range(rng.randrange(4)):
        dtype = one(rng, (*DTYPE_BITS, "F33"))
        shape = [rng.randrange(5) for _ in range(rng.randrange(4))]
        size = DTYPE_BITS.get(dtype, 8)
        for d in shape:
            size *= d
        end = at + size // 8
        if rng.random() < 0.3 and shape:
            shape[rng.randrange(len(shape))] = one(rng, NUMBERS)
        found[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end if rng.random() < 0.8 else at]}
        at = end
    return found


def package_verdict(data: bytes) -> dict[str, Any] | None:
    """The tensors the package finds, or None."""
    try:
        return {n: (t["dtype"], tuple(t["shape"]), bytes(t["data"])) for n, t in deserialize(data)}
    except SafetensorError:
        return None


def our_verdict(data: bytes) -> dict[str, Any] | str:
    """The tensors we find, or the reason there are none."""
    n = int.from_bytes(data[:8], "little")
    if len(data) < 8 or n > len(data) - 8:
        return "length"
    try:
        header = parse_header(data[8 : 8 + n], len(data) - 8 - n, Path("f"))
    except SourceError as e:
        return str(e)
    return {
        name: (spec.dtype, spec.shape, data[begin : begin + spec.nbytes])
        for name, (spec, begin) in header.tensors.items()
    }


def compare(data: bytes) -> bool:
    """Whether we accept it; asserts that the package says the same, or that we have our reasons."""
    ours, theirs = our_verdict(data), package_verdict(data)
    if isinstance(ours, dict):
        assert ours == theirs
        return True
    assert theirs is None or any(reason in ours for reason in STRICTER_REASONS), ours
    return False


def run(files: Mapping[str, bytes], folder: Path) -> None:
    if not compare(files["f"]):
        raise SourceError("refused")
