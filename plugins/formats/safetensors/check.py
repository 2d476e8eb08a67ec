"""A finished safetensors file as other programs will see it: through the `safetensors` library, headers only."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError
from pipeline.formats import FilePlan, Place
from plugins.formats.safetensors.header import LENGTH_NBYTES, METADATA


def check_file(path: Path, plan: FilePlan, places: Mapping[str, Place]) -> None:
    """Compare what the library says of the file at `path` with what was laid out.

    A dtype that the installed library does not know keeps it from opening the file at all, which is an error as well:
    whoever has that version could not read the file either.

    Raises:
        StorageError: they differ, or the library cannot open the file.
    """
    import safetensors  # on use: planning does without

    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata: Any = file.metadata()
            order = list(file.offset_keys())
            seen = {n: (s.get_dtype(), tuple(s.get_shape())) for n in order for s in [file.get_slice(n)]}
    except (safetensors.SafetensorError, OSError) as why:
        dtypes = ", ".join(sorted({p.spec.dtype for p in places.values()}))
        version = safetensors.__version__
        raise StorageError(
            f"{path}: the safetensors library ({version}) cannot open it: {why} (dtypes in it: {dtypes})"
        ) from None
    ours = {n: (p.spec.dtype, p.spec.shape) for n, p in places.items()}
    if wrong := sorted(n for n in {*ours, *seen} if ours.get(n) != seen.get(n)):
        raise StorageError(
            f"{path}: tensor {wrong[0]!r:.200} was laid out as {_spoken(ours.get(wrong[0]))}, the safetensors library "
            f"sees {_spoken(seen.get(wrong[0]))} ({len(wrong):,} of {len(ours):,} tensors differ)"
        )
    # The library gives no offsets. As the format leaves no gaps, the order says as much; no bytes, no place.
    laid_out = sorted((n for n, p in places.items() if p.spec.nbytes), key=lambda n: places[n].offset)
    found = [n for n in order if places[n].spec.nbytes]
    if laid_out != found:
        first = next(a for a, b in zip(laid_out, found, strict=True) if a != b)
        raise StorageError(f"{path}: tensor {first!r:.200} lies elsewhere to the safetensors library")
    said = json.loads(plan.prefix[LENGTH_NBYTES:]).get(METADATA)
    if metadata != said:
        raise StorageError(f"{path}: {METADATA} is {said!r:.200}, the safetensors library sees {metadata!r:.200}")


def _spoken(seen: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{seen[0]}{list(seen[1])}" if seen else "nothing"
