"""Results under their keys: what has been computed once is there for every run and sweep that needs the same.

`<paths.outputs>/.results/KEY/` holds `result.json` (what was found, and the digests of the files beside it), `key.json`
(what it depends on, for people and for `why`), those files, and in `runs/` who refers to it. A folder comes about under
another name and is put in place in one rename; whoever computes a key holds its lock, which dies with the process, and
may leave in `KEY.unfinished/` what the next one goes on from.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from pipeline.config.resolve import Resolver
from pipeline.digest import digest_file, identity
from pipeline.errors import SourceError, StorageError
from pipeline.files import read_whole, write_json
from pipeline.places import hindrance
from pipeline.running import text_stream
from pipeline.running.journal import locked

FOLDER = ".results"
RESULT, PARTS, RUNS = "result.json", "key.json", "runs"
UNFINISHED = ".unfinished"  # what a key's folder has behind its name
MOST_NBYTES = 1 << 30  # of a result; an export's has a record for every chunk
WAIT_S = 0.1

Found = tuple[Any, Path]
"""What was found, as JSON holds it, and the folder with its files."""


@dataclass(frozen=True)
class Results:
    """The folder of results, as one run sees it.

    Attributes:
        folder: `<paths.outputs>/.results`.
        run: folder of the run that refers to what it takes from here; None: nobody does.
        run_id: see `run.json`.
    """

    folder: Path
    run: Path | None = None
    run_id: str = ""

    @property
    def hindrance(self) -> str | None:
        """Why nothing can be kept; None where something can."""
        return hindrance(self.folder / ("0" * 32) / f"{RESULT}.partial")

    def once(
        self,
        key: str,
        make: Callable[[Path], Any],
        *,
        files: Sequence[str] = (),
        parts: Mapping[str, Any] | None = None,
        again: bool = False,
    ) -> Found:
        """What `make(folder)` gave, which may have written files into that folder: kept, or made now and then kept.

        Of all processes and threads that ask for one key at a time one makes it, and the others wait; when it dies, or
        fails, the next one does.

        Args:
            key: of what is made.
            make: gives what JSON holds.
            files: of those that it writes, the ones that are needed.
            parts: what the key is made of.
            again: make it, whatever is there.

        Raises:
            StorageError: it cannot be kept.
        """
        if not again and (found := self.read(key, files)) is not None:
            return found
        with self.alone(key):
            if not again and (found := self.read(key, files)) is not None:
                return found
            return self._made(key, make, parts or {})

    def read(self, key: str, files: Sequence[str] = ()) -> Found | None:
        """What is kept under `key`, if it is whole and has `files`; this run refers to it from now on."""
        place = self.folder / key
        if not (place / RESULT).exists():
            return None
        try:
            said = json.loads(read_whole(place / RESULT, MOST_NBYTES))
            body = said["result"]
            whole = said["xxh3_128"] == identity(body) and body["key"] == key
            listed = dict(body["files"])
            whole = whole and all(digest_file(place / n).xxh3_128 == listed[n] for n in listed)
        except (SourceError, ValueError, KeyError, TypeError, RecursionError):
            whole = False
        if not whole:
            text_stream.write(f"{place}: is damaged; made again\n")
            return None
        if not set(files) <= set(listed):
            return None
        self.refer(key)
        return body["value"], place

    def keep(self, key: str, value: Any, parts: Mapping[str, Any]) -> None:
        """Put `value` under `key`, whose lock the caller holds; what was there goes."""
        self._made(key, lambda folder: value, parts)

    def unfinished(self, key: str, parts: Mapping[str, Any]) -> Path:
        """A folder for what whoever makes `key`, whose lock the caller holds, has to go on from when that is killed or
        fails. It goes once the result is kept."""
        place = self.folder / f"{key}{UNFINISHED}"
        with self._kept():
            place.mkdir(parents=True, exist_ok=True)
        write_json(place / PARTS, dict(parts))
        self.refer(place.name)
        return place

    def _made(self, key: str, make: Callable[[Path], Any], parts: Mapping[str, Any]) -> Found:
        place = self.folder / key
        partial = self.folder / f"{key}.partial"  # nobody else's: its lock is ours
        try:
            with self._kept():
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
            value = make(partial)
            with self._kept():
                self._put(partial, place, key, value, parts)
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # where it was not put in its place
        self.refer(key)
        return value, place

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as why:
            raise StorageError(f"{self.folder}: results cannot be kept: {why.strerror or why}") from None

    def _put(self, partial: Path, place: Path, key: str, value: Any, parts: Mapping[str, Any]) -> None:
        files = sorted(p.relative_to(partial).as_posix() for p in partial.rglob("*") if p.is_file())
        digests = {n: digest_file(partial / n, sync=True).xxh3_128 for n in files}
        body = {"key": key, "value": value, "files": digests}
        write_json(partial / RESULT, {"result": body, "xxh3_128": identity(body)})
        write_json(partial / PARTS, dict(parts))
        if place.exists():
            if (place / RUNS).exists():
                (place / RUNS).rename(partial / RUNS)
            shutil.rmtree(place)
        partial.rename(place)
        shutil.rmtree(self.folder / f"{key}{UNFINISHED}", ignore_errors=True)

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Hold the lock of `key`; while another process or thread does, wait."""
        said = False

        def wait() -> None:
            nonlocal said
            if not said:
                text_stream.write(f"waiting for another run that computes the same ({key[:8]})\n")
            said = True
            time.sleep(WAIT_S)

        with locked(self.folder / f"{key}.lock", "", wait=wait):
            yield

    def refer(self, key: str) -> None:
        """Note that this run has what is kept under `key`: `gc` keeps that as long as the run's folder is there."""
        if self.run is None:
            return
        note = self.folder / key / RUNS / f"{identity([str(self.run), self.run_id])}.json"
        if not note.exists():
            with suppress(OSError):  # a folder of results that can only be read; what is not noted is only made again
                note.parent.mkdir(exist_ok=True)
                write_json(note, {"run": str(self.run), "id": self.run_id})


def packed(value: Any) -> Any:
    """A stage's result as JSON holds it.

    Raises:
        TypeError: something in it has no such form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return {k: packed(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [packed(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: packed(getattr(value, f.name)) for f in fields(value)}
    raise TypeError(f"{type(value).__name__} is nothing that JSON holds")


def unpacked(value: Any, cls: Any) -> Any:
    """The object of class `cls` that `packed` made `value` of; None when it does not fit (another version's)."""
    resolver = Resolver((), finite=False)
    found = resolver.typed(value, cls, "result")
    return None if resolver.problems else found


def keepable(value: Any, cls: Any) -> bool:
    """Whether a result comes back from JSON as it was."""
    try:
        return value is not None and bool(unpacked(json.loads(json.dumps(packed(value))), cls) == value)
    except (TypeError, ValueError, NameError, AttributeError):
        return False


@dataclass(frozen=True)
class Unreferred:
    """What no run refers to.

    Attributes:
        path: a folder of the results.
        nbytes: what it takes.
        what: the stage that found it.
    """

    path: Path
    nbytes: int
    what: str = field(default="")


def unreferred(outputs: Path) -> list[Unreferred]:
    """Results that no run refers to (any more), those that are being computed aside; and what killed runs left."""
    folder = outputs / FOLDER
    if not folder.is_dir():
        return []
    alive = {i for run in sorted(outputs.iterdir()) if (i := run_id(run)) is not None}
    found = []
    for place in sorted(p for p in folder.iterdir() if p.is_dir()):
        key = place.name.partition(".")[0]
        if not any(_alive(note, alive) for note in (place / RUNS).glob("*.json")) and not _busy(folder, key):
            try:
                stage = str(json.loads(read_whole(place / PARTS)).get("stage", ""))
            except (SourceError, ValueError, AttributeError):
                stage = ""
            found.append(Unreferred(place, _nbytes(place), stage.rpartition(".")[2]))
    return found


def referring(folder: Path) -> set[Path]:
    """Folders of the runs that referred to results in `folder`, wherever they are or were."""
    found = set()
    for note in folder.glob(f"*/{RUNS}/*.json"):
        with suppress(SourceError, ValueError, KeyError, TypeError):
            found.add(Path(json.loads(read_whole(note))["run"]))
    return found


def remove(found: Unreferred) -> None:
    """
    Raises:
        StorageError: it cannot be removed, or is being used just now.
    """
    folder, key = found.path.parent, found.path.name.partition(".")[0]
    with locked(folder / f"{key}.lock", f"{found.path}: is being computed"):
        try:
            shutil.rmtree(found.path)
        except OSError as why:
            raise StorageError(f"{found.path}: cannot be removed: {why.strerror}") from None


def run_id(folder: Path) -> str | None:
    """What `run.json` in a run's folder says it is."""
    try:
        return str(json.loads(read_whole(folder / "run.json"))["id"])
    except (SourceError, ValueError, KeyError, TypeError):
        return None


def _alive(note: Path, known: set[str]) -> bool:
    try:
        said = json.loads(read_whole(note))
        return said["id"] in known or run_id(Path(said["run"])) == said["id"]
    except (SourceError, ValueError, KeyError, TypeError):
        return False


def _busy(folder: Path, key: str) -> bool:
    if not (folder / f"{key}.lock").exists():
        return False
    try:
        with locked(folder / f"{key}.lock", "busy"):
            return False
    except StorageError:
        return True


def _nbytes(folder: Path) -> int:
    return sum((Path(base) / n).lstat().st_size for base, _, names in os.walk(folder) for n in names)
