"""A folder that a run makes: locked while it is written, filled under another name, put in place in one rename.

Only what is ours is replaced. Ours is a folder that holds `.weightmill.json`, which lists the files that were put
there, and nothing that it does not list: a finished export is known wherever it was moved, and nobody's file goes with
it.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pipeline.errors import SourceError, StorageError, some
from pipeline.files import is_inner, read_whole, write_json
from pipeline.places import hindrance, nbytes_on_disk, reason, sync, unlisted
from pipeline.running.journal import locked

MARKER = ".weightmill.json"
VERSION = 1
KEY_CHARS = 16  # of the key, in the names of folders
MAX_MARKER_NBYTES = 64 << 20  # a million files

Stamp = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Marker:
    """What `.weightmill.json` says.

    Attributes:
        key: of the run that made the folder.
        files: relative names of all files in it, without the marker.
        run: folder of that run, as long as it is at work.
        replaces: what stood at the target when it began.
    """

    key: str
    files: tuple[str, ...]
    run: str | None = None
    replaces: Stamp | None = None


@dataclass(frozen=True)
class Target:
    """The folder and how it comes about.

    Attributes:
        path: where it is to be, absolute.
        key: of the run that makes it; its temporary names carry it.
        run: the run's folder.
        files: every file that will be in it, the marker included; relative, with slashes.
        overwrite: replace an earlier one.
    """

    path: Path
    key: str
    run: Path
    files: tuple[str, ...]
    overwrite: bool

    @cached_property
    def partial(self) -> Path:
        """Where it is filled."""
        return self._beside("partial")

    @property
    def replaced(self) -> Path:
        """Where what it replaces is for a moment."""
        return self._beside("replaced")

    def _beside(self, what: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{self.key[:KEY_CHARS]}.{what}")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other runs off. The lock lies beside the target, dies with the process, and leaves nothing behind.

        Raises:
            StorageError: another run is writing the same target.
        """
        lock = self.path.with_name(f".{self.path.name}.weightmill.lock")
        with locked(lock, f"{self.path}: another run is writing there (export.path); wait for it, or choose another"):
            old = _of_manifest(self.path)  # which goes before the folder does
            if old and self.overwrite and read_marker(self.path) is None and not strange(self.path):
                write_json(self.path / MARKER, {"weightmill": VERSION, "key": old.key, "files": old.files})
            yield

    def obstacles(self, *, finished: bool) -> Iterator[str]:
        """What stands in the way on disk, too little space aside.

        Args:
            finished: everything was written by an earlier try, so that a target with our key is this run's own.
        """
        longest = max(self.files, key=len)
        if why := hindrance(self.partial / longest):
            yield f"{self.path!s:.300}: {why}"
            return
        try:
            if os.path.lexists(self.path) and not self.own(finished=finished) and (why := self._standing()):
                yield f"{self.path} exists already{why}"
            for folder in (self.partial, self.replaced):
                if os.path.lexists(folder) and (why := strange(folder)):
                    yield f"{folder} is in the way, {why}; move it elsewhere"
        except OSError as why_not:
            yield f"{why_not.filename or self.path}: {reason(why_not)}"

    def own(self, *, finished: bool) -> bool:
        """Whether what stands there is what this run put there, before it was killed."""
        if not finished or os.path.lexists(self.partial) or strange(self.path):
            return False
        marker = read_marker(self.path)
        return marker is not None and marker.key == self.key

    def _standing(self) -> str | None:
        """Why what stands there is not to be replaced."""
        if self.path.is_symlink():
            leads = f"to {os.path.realpath(self.path)}" if self.path.exists() else "nowhere"
            return f": a link that leads {leads}; links are not replaced, choose another"
        if os.path.ismount(self.path):
            return ": a mount point, which cannot be replaced; choose a folder in it"
        if why := strange(self.path):
            return f", {why}; it is not replaced, with overwrite=true neither: choose another"
        return None if self.overwrite else "; choose another, or overwrite=true to replace it"

    def nbytes_there(self) -> int:
        """What is on disk already of what this run will write, or is removed before it writes."""
        return sum(nbytes_on_disk(f) for f in {self.partial, *self._left()})

    def _left(self) -> Iterator[Path]:
        """Partial folders of this target that this run's key, or an earlier run in its folder, left."""
        for folder in self.path.parent.glob("*.partial"):
            marker = read_marker(folder)
            if marker is None or folder.name != f"{self.path.name}.{marker.key[:KEY_CHARS]}.partial":
                continue
            if (marker.key == self.key or marker.run == str(self.run)) and not strange(folder):
                yield folder

    def begin(self, *, fresh: bool) -> None:
        """Make the partial folder: empty when `fresh`, or else as an earlier try of this run left it.

        Raises:
            StorageError: it cannot be made.
        """
        try:
            if fresh:
                for folder in self._left():
                    remove(folder)
            elif self.own(finished=True):  # killed between the rename and the manifest: digests will tell
                self.path.rename(self.partial)
            self.partial.mkdir(parents=True, exist_ok=True)
            write_json(self.partial / MARKER, self._said(run=str(self.run), replaces=_stamp(self.path)))
        except OSError as why:
            raise StorageError(f"{self.partial}: cannot be prepared: {reason(why)}") from None

    def mark(self) -> None:
        """Write the finished folder's marker into the partial one; in one rename, as a folder without one is nobody's.

        Raises:
            OSError: it cannot be written.
        """
        partial = self.partial / f"{MARKER}.partial"
        partial.write_bytes(self.marker)
        partial.replace(self.partial / MARKER)

    @property
    def marker(self) -> bytes:
        """Content of the marker of the finished folder."""
        return (json.dumps(self._said(), indent=1, ensure_ascii=False) + "\n").encode()

    def _said(self, **more: Any) -> dict[str, Any]:
        return {"weightmill": VERSION, "key": self.key, "files": [f for f in self.files if f != MARKER], **more}

    def check(self) -> Stamp | None:
        """What is to be replaced, which is what stood there when the run began.

        Raises:
            StorageError: it is not any more, or the partial folder is not what this run made of it.
        """
        marker = read_marker(self.partial)
        if marker is None or marker.key != self.key:
            raise StorageError(f"{self.partial}: was moved or removed while this run was writing there")
        try:
            self._check_listed()
            if _stamp(self.path) != marker.replaces:
                raise StorageError(
                    f"{self.path}: changed while this run was at work, and is left as it is; "
                    "move it away, and the same command goes on from here"
                )
        except OSError as why:
            raise StorageError(f"{self.path}: {reason(why)}") from None
        return marker.replaces

    def _check_listed(self) -> None:
        if extra := unlisted(self.partial, _with_marker(self.files)):
            raise StorageError(f"{self.partial}: holds {some(extra)}, which this run did not write; move that away")

    def put_in_place(self, replaces: Stamp | None) -> None:
        """Rename the partial folder to the target; whatever `replaces` names makes room, and is removed after.

        Raises:
            StorageError: something else stands there, or came into it, which is then left as it is.
        """
        try:
            for folder in (self.partial, *(p for p in self.partial.rglob("*") if p.is_dir())):
                sync(folder)
            self._check_listed()  # again, as the digests may have taken minutes
            if replaces is not None:
                if os.path.lexists(self.replaced):  # of an earlier try that was killed while it removed this
                    remove(self.replaced)
                self.path.rename(self.replaced)
                moved = _stamp(self.replaced)
                if moved is None or moved[0] != replaces[0] or strange(self.replaced):
                    self.replaced.rename(self.path)
                    raise StorageError(f"{self.path}: changed while this run was at work, and is left as it is")
            try:
                self.partial.rename(self.path)
            except OSError:
                if replaces is not None and not os.path.lexists(self.path):
                    self.replaced.rename(self.path)
                raise
            sync(self.path.parent)
            if os.path.lexists(self.replaced):  # of an earlier try, perhaps, that was killed between the two renames
                remove(self.replaced)
        except OSError as why:
            raise StorageError(f"{self.path}: cannot be put in place: {reason(why)} ({why.filename})") from None


def read_marker(folder: Path) -> Marker | None:
    """What the folder's marker says; None when it has none, or one that says nothing."""
    path = folder / MARKER
    try:
        if path.is_symlink():
            return None
        said = json.loads(read_whole(path, MAX_MARKER_NBYTES))
        replaces = said.get("replaces")
        files = tuple(said["files"])
        if said["weightmill"] != VERSION or not isinstance(said["key"], str) or not all(map(is_inner, files)):
            return None
        return Marker(said["key"], files, said.get("run"), tuple(replaces) if replaces else None)
    except (SourceError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _with_marker(files: Sequence[str]) -> set[str]:
    return {*files, MARKER, f"{MARKER}.partial"}  # and what writing it leaves when it is interrupted


def _of_manifest(folder: Path) -> Marker | None:
    """For an export from before there were markers: by the manifest of the run in whose folder it lies."""
    try:
        said = json.loads(read_whole(folder.parent / "manifest.json"))
        paths = [Path(f["path"]) for f in said["outputs"]] if said["weightmill"] == 1 else []
        made = Path(said["run"]) / folder.name  # where it was made; the run's folder may have been moved
    except (SourceError, ValueError, KeyError, TypeError, RecursionError):
        return None
    files = tuple(p.relative_to(made).as_posix() for p in paths if p.is_relative_to(made))
    return Marker("", files) if files and all(map(is_inner, files)) else None


def strange(folder: Path) -> str | None:
    """Why `folder` is not ours; None when it is.

    Raises:
        OSError: it cannot be looked at.
    """
    if folder.is_symlink() or not folder.is_dir():
        return "and is no folder"
    marker = read_marker(folder) or _of_manifest(folder)
    extra = unlisted(folder, _with_marker(marker.files if marker else ()))
    if marker is None and (extra or not folder.name.endswith(".partial")):  # one that was only just made is empty
        return f"and has no {MARKER}, so that no run of Weightmill made it"
    return f"and holds what no run put there ({some(extra)})" if extra else None


def remove(folder: Path) -> None:
    """Remove a folder of ours, file by file that it lists, so that whatever else is in it stays.

    Raises:
        StorageError: there is something else.
        OSError: it cannot be removed.
    """
    marker = read_marker(folder)
    files = marker.files if marker else ()
    for name in files:
        (folder / name).unlink(missing_ok=True)
    parents = {folder / p for name in files for p in Path(name).parents if p != Path(".")}
    for parent in sorted(parents, key=lambda p: -len(p.parts)):
        if parent.is_dir() and not any(parent.iterdir()):
            parent.rmdir()
    if extra := unlisted(folder, _with_marker(())):
        raise StorageError(f"{folder}: holds {some(extra)}, which no run put there; that is left as it is")
    for name in _with_marker(()):  # last: until then what is left of the folder is known as ours
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def _stamp(path: Path) -> Stamp | None:
    """Which thing stands at `path`, and since when as it is; None for nothing."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_ctime_ns
