"""Tables: CSV files of numbers and categories, of which one column is to be told from the others."""

import csv
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from pipeline.digest import InputFile, described, identity
from pipeline.errors import ConfigError, Problem, SourceError, did_you_mean
from pipeline.files import spoken
from pipeline.stage import NEUTRAL, Checkpoint, Results
from pipeline.training import DataPlan, Splits
from plugins.data import sources
from plugins.data.columns import Column, Number, OneHot, Ordinal, Prepare, in_order, statistics
from plugins.data.faults import Faults
from plugins.data.rows import Rows, numbers
from plugins.data.shares import is_held_out, share
from plugins.data.sources import content
from plugins.data.supervised import divided, fits

VERSION = 1
VALUES, DIGESTS, APART = "values.bin", "digests.bin", "apart.bin"


class Row(NamedTuple):
    """A line of numbers.

    Attributes:
        values: of the features, then of the target.
        digest: of the line's fields.
        at: bytes of the file that have been read.
    """

    values: list[float]
    digest: int
    at: int


@dataclass(frozen=True)
class Table:
    """Rows of a table. The first line of a file names its columns.

    Attributes:
        files: paths; .gz is decompressed.
        target: the column to be told.
        features: the columns that it is told from; None: all others.
        ordinal: column → its values in order, which become 0, 1, 2, …
        one_hot: columns each value of which becomes a column of its own, 0 or 1.
        log: columns of which the natural logarithm is taken.
        classes: values of the target, which is then a class; None: it is a number.
        standardize: numbers, but those of `one_hot` and classes, are shifted and scaled to mean 0 and deviation 1 over
            the rows to train on.
        delimiter: between fields.
        held_out: share of the rows that are for evaluation only.
        held_out_files: files that are for evaluation only.
        origin: where to get the files, for people who have none.
    """

    files: tuple[str, ...]
    target: str
    features: tuple[str, ...] | None = None
    ordinal: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    one_hot: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    standardize: bool = True
    delimiter: str = ","
    held_out: float = 0.1
    held_out_files: tuple[str, ...] = ()
    origin: str | None = field(default=None, metadata=NEUTRAL)

    def __post_init__(self) -> None:
        share(self.held_out)
        if len(self.delimiter) != 1:
            raise ConfigError(f"data.delimiter={self.delimiter!r}: one character is expected")
        if self.classes is not None and len(self.classes) < 2:
            raise ConfigError(f"data.classes={list(self.classes)}: two at least are expected")

    def inputs(self) -> tuple[InputFile, ...]:
        """See `pipeline.training.Dataset`, for all of these."""
        return (*self._found(Faults()), *self._apart(Faults()))

    def check(self, checkpoint: Checkpoint | None) -> tuple[Problem, ...]:
        faults, reading = Faults(), _Reading(self)
        found, apart = self._found(faults), self._apart(faults)
        sources.check_apart(found, apart, "data.held_out_files", faults)
        for file in (*found, *apart):
            for _ in reading.rows(file.path, faults, sources.CHECKED):
                pass
        if found and not faults:
            fits(checkpoint, reading.prepare().width, self._outputs, faults)
        return faults.problems

    def plan(self, checkpoint: Checkpoint | None) -> DataPlan:
        faults, reading, counts = Faults(), _Reading(self), []
        for files in (self._found(faults), self._apart(faults)):
            counts.append(0)
            for file in files:
                seen = at = 0
                for row in reading.rows(file.path, faults, sources.CHECKED):
                    seen, at = seen + 1, row.at
                counts[-1] += seen * file.nbytes // max(1, at)
        faults.check()
        rows, apart = counts
        part = round(self.held_out * rows)
        specs = numbers((reading.prepare().width,), self._dtype)
        nbytes = (rows + apart) * 4 * (len(reading.columns) + 3)
        return DataPlan(max(1, rows - part), specs, 0, nbytes, 32 << 20, apart + part)

    def open(self, results: Results, tokenizer: Any | None) -> Splits:
        faults = Faults()
        found, apart = self._found(faults), self._apart(faults)
        faults.check()
        neutral = ("files", "held_out", "held_out_files", "standardize", "origin")
        options = {k: v for k, v in described(self).items() if k not in neutral}
        files = [[content(f) for f in some] for some in (found, apart)]
        parts = {"data": "table", "version": VERSION, "files": files, "options": options}

        def make(folder: Path) -> dict[str, Any]:
            return self._make(folder, found, apart)

        facts, folder = results.once(identity(parts), make, files=(VALUES, DIGESTS, APART), parts=parts)
        values = np.memmap(folder / VALUES, np.float32, "r").reshape(-1, len(facts["columns"]))
        digests, is_apart = np.fromfile(folder / DIGESTS, np.uint64), np.fromfile(folder / APART, bool)
        out = is_held_out(self.held_out)(digests) | is_apart
        return self._split(facts["columns"], facts["values"], values, out)

    def _split(self, names: list[str], one_hot: dict[str, list[str]], values: np.ndarray, out: np.ndarray) -> Splits:
        mean, deviation = statistics(values, np.flatnonzero(~out))
        places = {names.index(n): in_order(found) for n, found in one_hot.items()}
        plain = [*places, *([] if self.classes is None else [-1])] if self.standardize else slice(None)
        mean[plain], deviation[plain] = 0, 1
        prepare = Prepare(mean[:-1], deviation[:-1], places)
        targets = ((values[:, -1] - mean[-1]) / deviation[-1]).astype(self._dtype)
        facts = {n: {"mean": float(m), "deviation": float(d)} for n, m, d in zip(names, mean, deviation, strict=True)}
        rows = Rows(values[:, :-1], targets, prepare, (prepare.width,))
        return divided(rows, out, {"columns": facts | {n: {"values": sorted(found)} for n, found in one_hot.items()}})

    @property
    def _dtype(self) -> str:
        return "float32" if self.classes is None else "int32"

    @property
    def _outputs(self) -> int:
        return 1 if self.classes is None else len(self.classes)

    def _found(self, faults: Faults) -> tuple[InputFile, ...]:
        return sources.found(self.files, "data.files", faults, self.origin)

    def _apart(self, faults: Faults) -> tuple[InputFile, ...]:
        return (
            sources.found(self.held_out_files, "data.held_out_files", faults, self.origin)
            if self.held_out_files
            else ()
        )

    def _make(self, folder: Path, found: tuple[InputFile, ...], apart: tuple[InputFile, ...]) -> dict[str, Any]:
        faults, reading = Faults(), _Reading(self)
        digests, is_apart = array("Q"), array("b")
        with (folder / VALUES).open("wb") as written:
            for file in (*found, *apart):
                for row in reading.rows(file.path, faults, None):
                    written.write(np.array(row.values, np.float32).tobytes())
                    digests.append(row.digest)
                    is_apart.append(file in apart)
        faults.check()
        (folder / DIGESTS).write_bytes(digests.tobytes())
        (folder / APART).write_bytes(is_apart.tobytes())
        values = {n: list(c.values) for n, c in reading.columns.items() if isinstance(c, OneHot)}
        return {"columns": list(reading.columns), "values": values}


class _Reading:
    """Files of a table, read one after another.

    Attributes:
        columns: those that count, by name, the target last; none before a file has been read.
    """

    def __init__(self, table: Table):
        self._table = table
        self.columns: dict[str, Column] = {}

    def prepare(self) -> Prepare:
        """What a model would be given, without what only all rows tell."""
        columns = list(self.columns.values())[:-1]
        zeros = np.zeros(len(columns), np.float32)
        places = {i: in_order(list(c.values)) for i, c in enumerate(columns) if isinstance(c, OneHot)}
        return Prepare(zeros, zeros + 1, places)

    def rows(self, path: Path, faults: Faults, most: int | None) -> Iterator[Row]:
        """The rows of a file in which nothing is wrong; what is wrong goes to `faults`.

        Args:
            most: bytes of it to read, about; None: all.
        """
        line = 1
        try:
            with sources.streamed(path) as stream:
                reader = csv.reader(_decoded(stream), delimiter=self._table.delimiter, strict=True)
                names = next(reader, [])
                if not self._names(path, names, faults):
                    return
                places = [(names.index(name), name, column) for name, column in self.columns.items()]
                for fields in reader:
                    line = reader.line_num
                    if fields and (values := _values(fields, names, places, path, line, faults)):
                        yield Row(values, xxhash.xxh3_64_intdigest("\0".join(fields).encode()), stream.at)
                    if most is not None and stream.at > most:
                        return
                if line == 1:
                    faults.add(path, "has the names of columns, and no rows")
        except UnicodeDecodeError as why:
            faults.add(path, f"is no UTF-8: byte 0x{why.object[why.start]:02x}", line + 1)
        except csv.Error as why:
            faults.add(path, f"is no CSV: {why}", line + 1)
        except SourceError as why:
            faults.add(path, str(why).removeprefix(f"{spoken(path)}: "))

    def _names(self, path: Path, names: list[str], faults: Faults) -> bool:
        """Whether a file has the columns that it should."""
        t = self._table
        features = t.features or tuple(n for n in names if n != t.target)
        asked = {"target": (t.target,), "features": features, "ordinal": t.ordinal, "one_hot": t.one_hot, "log": t.log}
        wrong = [
            f"has no column {name!r}, which data.{option} names{did_you_mean(name, names)}"
            for option, some in asked.items()
            for name in some
            if name not in names
        ]
        wrong += ["two columns have the same name"] if len(set(names)) < len(names) else []
        if wrong and len(names) == 1 and (other := next((d for d in ";\t|," if d in names[0]), "")):
            wrong = [f"has one column, {names[0]!r:.80}; data.delimiter={other!r} seems to be what is between fields"]
        for text in wrong:
            faults.add(path, text, 1)
        if wrong:
            return False
        wanted = [*features, t.target]
        if self.columns and [*self.columns] != wanted:
            has = f"{', '.join(self.columns):.200}"
            faults.add(path, f"has other columns than the files before it, which have {has}", 1)
            return False
        self.columns = self.columns or {name: self._column(name) for name in wanted}
        return True

    def _column(self, name: str) -> Column:
        t = self._table
        if name == t.target and t.classes is not None:
            return Ordinal(t.classes, "data.classes")
        if name in t.ordinal:
            return Ordinal(t.ordinal[name], f"data.ordinal.{name}")
        return OneHot() if name in t.one_hot else Number(name in t.log)


def _decoded(stream: sources.Stream) -> Iterator[str]:
    for _, line in sources.lines(stream):
        yield line.decode()


def _values(
    fields: list[str], names: list[str], places: list[tuple[int, str, Column]], path: Path, line: int, faults: Faults
) -> list[float]:
    """The numbers of a line; none where something is wrong with it."""
    if len(fields) != len(names):
        faults.add(path, f"has {len(fields)} fields; the first line names {len(names)} columns", line)
        return []
    values = []
    for at, name, column in places:
        try:
            values.append(column.read(fields[at].strip()))
        except ValueError as why:
            faults.add(path, f"column {name!r}: {why}", line)
    return values if len(values) == len(places) else []
