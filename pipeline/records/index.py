"""The index: what was read from runs' folders, in one SQLite file beside them, so that it need not be read again.

It is never the truth. A row counts while the stamps of the files that it was made from are what they were; the file is
made anew when it is gone, damaged or of another version. It is never changed where it stands: whoever has read
something new writes a copy under another name, and puts that in place in one rename. So nobody waits for anybody, no
lock is needed, and of two who do so at once the later one wins; what it did not know is read again.
"""

import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import xxhash

from pipeline.terminal import say

NAME = ".index.sqlite"
VERSION = 5  # of rows; an index of another one is made anew
LEFT_S = 3600.0  # what a killed process left under another name goes after so long

Table = Literal["records", "settings", "series", "measured"]
TABLES: tuple[Table, ...] = ("records", "settings", "series", "measured")
Rows = dict[str, tuple[str, str]]
"""Name of a folder → stamp of the files that the row was made from, and the row, as JSON."""


@dataclass
class Index:
    """Attributes:
    folder: of outputs.
    sound: the file as it stands can be gone on from.
    """

    folder: Path
    sound: bool = True
    _rows: dict[str, Rows] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / NAME

    @property
    def hindered(self) -> bool:
        """Whether a folder stands where the file would; that is somebody's, and is not touched."""
        return self.file.is_dir()

    def rows(self, table: Table) -> Rows:
        """What is known; a damaged file is said, and counts as nothing."""
        if table not in self._rows:
            self._rows[table] = self._looked(table)
        return self._rows[table]

    def row(self, table: Table, name: str) -> tuple[str, str] | None:
        """One of them, without the others."""
        return self._rows[table].get(name) if table in self._rows else self._looked(table, name).get(name)

    def keep(self, table: Table, changed: Mapping[str, tuple[str, str]], gone: Collection[str]) -> None:
        """Rows that are new, and those that go. A folder that cannot be written has no index."""
        if (not changed and not gone) or self.hindered:
            return
        partial = self.file.with_name(f"{NAME}.{uuid.uuid4().hex}.partial")
        try:
            try:
                if self.sound and self.file.exists():
                    shutil.copyfile(self.file, partial)
                _write(partial, table, changed, gone)
            except sqlite3.DatabaseError:  # damaged where nobody has looked yet
                partial.unlink(missing_ok=True)
                _write(partial, table, {**self._rows.get(table, {}), **changed}, gone)
            partial.replace(self.file)
            self.sound = True
            _tidy(self.folder)
        except (OSError, sqlite3.Error):
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        if table in self._rows:
            self._rows[table] = {n: r for n, r in {**self._rows[table], **changed}.items() if n not in gone}

    def _looked(self, table: Table, name: str | None = None) -> Rows:
        if not self.sound:
            return {}
        if self.hindered:
            _once(f"{self.file}: is a folder, where the index of runs would be kept: they are read anew each time")
            self.sound = False
            return {}
        try:
            return _read(self.file, table, name)
        except FileNotFoundError:
            self.sound = False
        except (sqlite3.Error, ValueError, OSError) as why:
            say(f"{self.file}: the index is damaged ({why}), and made anew from the runs")
            self.sound = False
        return {}


@cache
def _once(text: str) -> None:
    say(text)


def _read(file: Path, table: Table, only: str | None) -> Rows:
    """All rows of a table, or that of one name.

    Raises:
        FileNotFoundError: there is none, or it is of another version.
        sqlite3.Error, ValueError, OSError: it is damaged.
    """
    if not file.exists():
        raise FileNotFoundError(file)
    which = "" if only is None else " WHERE name = ?"
    asked = f"SELECT name, stamp, text, digest FROM {table}{which}"  # noqa: S608
    # Nobody changes it where it stands, so that SQLite takes no lock.
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        if db.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            raise FileNotFoundError(file)
        found: Rows = {}
        for name, stamp, text, digest in db.execute(asked, () if only is None else (os.fsencode(only),)):
            if not isinstance(text, str) or not isinstance(name, bytes) or _digest(name, stamp, text) != digest:
                raise ValueError("a row is not what was written")
            found[os.fsdecode(name)] = (stamp, text)
    return found


def _write(file: Path, table: Table, changed: Mapping[str, tuple[str, str]], gone: Collection[str]) -> None:
    """
    Raises:
        sqlite3.Error: it is damaged, or there is no room.
    """
    with closing(sqlite3.connect(file, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=OFF")  # nobody sees the file before it is whole
        db.execute("PRAGMA synchronous=OFF")  # what a power cut tears is damaged, and made anew
        db.execute("BEGIN")
        for one in TABLES:
            db.execute(
                f"CREATE TABLE IF NOT EXISTS {one} "
                "(name BLOB PRIMARY KEY, stamp TEXT NOT NULL, text TEXT NOT NULL, digest BLOB NOT NULL)"
            )
        db.execute(f"PRAGMA user_version={VERSION}")
        db.executemany(f"DELETE FROM {table} WHERE name = ?", [(os.fsencode(n),) for n in gone])  # noqa: S608
        rows = ((os.fsencode(n), stamp, text) for n, (stamp, text) in sorted(changed.items()))
        db.executemany(
            f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)",  # noqa: S608
            ((name, stamp, text, _digest(name, stamp, text)) for name, stamp, text in rows),
        )
        if table == "records":  # what was read of runs that are gone goes with them
            for other in TABLES[1:]:
                db.execute(f"DELETE FROM {other} WHERE name NOT IN (SELECT name FROM records)")  # noqa: S608
        db.execute("COMMIT")


def _digest(name: bytes, stamp: str, text: str) -> bytes:
    found = xxhash.xxh3_64(name)
    found.update(os.fsencode(f"{stamp}\n{text}"))
    return found.digest()


def _tidy(folder: Path) -> None:
    """Remove what killed processes left under other names."""
    for left in folder.glob(f"{NAME}.*.partial*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()
