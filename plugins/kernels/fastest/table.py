"""How long calls took on a kind of device, and so which backend is to do a call there: `fastest` in a list of backends.

A file of a kind of device has a row for each call that was timed: by which backend it took how long. Beside this module
are those that come along, in the cache folder what `python -m pipeline tune` measured on this machine's own device,
which comes first. Nothing else ever measures, and where nothing is known `fastest` takes nothing. A table counts for
the JAX that it was made with, which compiles the kernels. Of a call that was not timed itself the one counts that is
least far from it in powers of two (`sizes.apart`).
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from pipeline.digest import identity
from pipeline.files import cache_folder, folder_for, write_json
from pipeline.running import text_stream
from plugins.kernels.fastest import sizes
from plugins.kernels.fastest.sizes import Sizes

OURS: Final = ("mosaic_gpu", "pallas")  # those of others, and what is not exact, run where they are named alone
USUAL: Final = "xla"  # what does whatever they do not
WORTH: Final = 0.03  # what is faster by less than this share may be noise
HERE: Final = Path(__file__).parent
VERSION: Final = 1  # of a file
LONGEST: Final = 1e12  # microseconds, and numbers of anything: beyond is damage


@dataclass(frozen=True, slots=True)
class Row:
    """A call that was timed.

    Attributes:
        op: what was done.
        of: with which encodings (`sizes.of`).
        sizes: powers of two.
        us: microseconds, by backend.
    """

    op: str
    of: str
    sizes: Sizes
    us: Mapping[str, float]

    @property
    def faster(self) -> list[str]:
        """Those of ours that take less time than what is usual, the fastest first."""
        usual = self.us.get(USUAL, 0.0)
        return sorted((b for b in OURS if self.us.get(b, usual) * (1 + WORTH) < usual), key=lambda b: self.us[b])


def order(request: Any) -> tuple[list[str], str]:
    """The backends to try, the fastest first, and why these are not more.

    Args:
        request: a `pipeline.ops.Request`.
    """
    if not request.device:
        return [], f"no kind of {request.platform} is known here"
    known, others = rows(request.device)
    if not known:
        what = f"nothing was measured on {request.device}"
        if others:
            what = f"on {request.device} was measured with JAX {' and '.join(others)}, and this is {jax()}"
        return [], f"{what}; `python -m pipeline tune` does it there"
    call = sizes.of(request)
    row = None if call is None else _nearest(known, request.op, *call)
    if row is None:
        return [], f"no such call, or one near it, was measured on {request.device}"
    return row.faster, "" if row.faster else f"{USUAL} was the fastest on {request.device}"


def _nearest(known: Iterable[Row], op: str, of: str, asked: Sizes) -> Row | None:
    near = [(sizes.apart(asked, row.sizes), row) for row in known if (row.op, row.of) == (op, of)]
    least, row = min(near, key=lambda found: (found[0], str(found[1].sizes)), default=(float("inf"), None))
    return None if least == float("inf") else row


@cache
def rows(device: str) -> tuple[tuple[Row, ...], tuple[str, ...]]:
    """All that is known of a kind of device, as JAX names it, and with which other versions of JAX more was measured.
    A damaged file counts for nothing, and that is said."""
    found: dict[Any, Row] = {}
    others = []
    for path in (HERE / _name(device), kept(device)):
        try:
            made_by, measured = read(path, device)
        except ValueError as why:
            text_stream.say(f"{why}; it counts for nothing, and `weightmill tune` writes it anew")
            continue
        if made_by == jax():
            found |= {_call(row): row for row in measured}
        elif measured:
            others.append(made_by)
    return tuple(found.values()), tuple(others)


def told(device: str) -> str:
    """A digest of what is chosen on a device: results depend on which backends ran, as their sums differ."""
    return identity([[row.op, row.of, list(row.sizes), row.faster] for row in rows(device)[0]])


def jax() -> str:
    """The JAX that is installed: major and minor version."""
    return _minor(metadata.version("jax"))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def kept(device: str) -> Path:
    """Where what was measured on this machine is kept."""
    return cache_folder() / "fastest" / _name(device)


def keep(device: str, measured: Iterable[Row]) -> None:
    """Write what was measured beside what is kept of other calls, if that can be read.

    Raises:
        StorageError: it cannot be written.
    """
    path = kept(device)
    try:
        made_by, before = read(path, device)
    except ValueError:
        made_by, before = jax(), []
    found = {_call(row): row for row in (*(before if made_by == jax() else ()), *measured)}
    said = [{"op": r.op, "of": r.of, "sizes": list(r.sizes), "us": dict(r.us)} for r in found.values()]
    folder_for(path)
    write_json(path, {"version": VERSION, "device": device, "jax": metadata.version("jax"), "rows": said})
    rows.cache_clear()


def read(path: Path, device: str) -> tuple[str, list[Row]]:
    """With which JAX, major and minor version, what was measured; nothing where there is no file.

    Raises:
        ValueError: it is no such file, or of another device.
    """
    try:
        said = json.loads(path.read_bytes().decode())
        made_by, found = str(said["jax"]), [Row(r["op"], r["of"], tuple(r["sizes"]), r["us"]) for r in said["rows"]]
        whole = (said["version"], said["device"]) == (VERSION, device) and all(map(_whole, found))
    except FileNotFoundError:
        return jax(), []
    except OSError as why:
        raise ValueError(f"{path}: {why.strerror}") from None
    except (ValueError, TypeError, KeyError):
        whole = False
    if not whole:
        raise ValueError(f"{path}: no table of what calls take on {device}")
    return _minor(made_by), found


def _call(row: Row) -> tuple[str, str, Sizes]:
    return row.op, row.of, row.sizes


def _whole(row: Row) -> bool:
    numbers = all(type(n) is int and 0 < n < LONGEST for n in row.sizes)
    times = isinstance(row.us, dict) and all(type(us) in (int, float) and 0 < us < LONGEST for us in row.us.values())
    return type(row.of) is str and numbers and times and len(row.sizes) == sizes.MANY.get(row.op) and USUAL in row.us


def _name(device: str) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '_', device.lower()).strip('_')}.json"
