"""What every container promises, as tests: what is written, in any order, is what is read; all else is an error."""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import SourceError, StorageError
from pipeline.formats import Container, Layout
from pipeline.tensors.spec import DTYPE_BITS, TensorSpec
from pipeline.testing.memory import cut, random_boxes, random_bytes, same


@dataclass(frozen=True)
class Written:
    """A folder that a container wrote, and what went in."""

    folder: Path
    layout: Layout
    arrays: Mapping[str, Any]


class ContainerContract:
    """Tests of one container on leaves of every dtype it can hold."""

    dtypes: tuple[str, ...] = tuple(d for d in DTYPE_BITS if DTYPE_BITS[d] >= 8)
    """Dtypes that the container can hold; sub-byte ones are held as packed U8."""

    def container(self) -> Container:
        """The container, made anew."""
        raise NotImplementedError

    def leaves(self) -> dict[str, TensorSpec]:
        """Leaves to write: every dtype in another shape, and shapes at the edge."""
        found = {f"of.{d.lower()}": TensorSpec((2 + i, 3, 5 + i), d) for i, d in enumerate(self.dtypes)}
        any_dtype = self.dtypes[-1]
        edges: dict[str, tuple[int, ...]] = {"scalar": (), "vector": (1013,), "empty": (0, 4), "one": (1, 1, 1, 1)}
        return found | {f"shape.{n}": TensorSpec(s, any_dtype) for n, s in edges.items()}

    def metadata(self) -> dict[str, Any]:
        """Facts about the whole that the container can hold."""
        return {"format": "pt"}

    @pytest.fixture
    def written(self, tmp_path: Path) -> Written:
        """All leaves written in random boxes that cover them, in random order."""
        rng = np.random.default_rng(0)
        leaves, container = self.leaves(), self.container()
        arrays = {n: random_bytes(s, s.shape, rng) for n, s in leaves.items()}
        layout = container.layout(leaves, self.metadata(), None)
        container.begin(tmp_path, layout)
        pieces = [(n, box) for n, s in leaves.items() for box in _halves(s)]
        for i in rng.permutation(len(pieces)).tolist():
            name, box = pieces[i]
            container.write(tmp_path, layout, name, box, np.array(arrays[name][box], order="C"))
        for name, content in layout.extra.items():
            (tmp_path / name).write_bytes(content)
        return Written(tmp_path, layout, arrays)

    def test_layout_is_data(self) -> None:
        leaves = self.leaves()
        layout = self.container().layout(leaves, self.metadata(), None)
        assert layout == pickle.loads(pickle.dumps(self.container())).layout(leaves, self.metadata(), None)
        assert pickle.loads(pickle.dumps(layout)) == layout
        assert {n: p.spec for n, p in layout.places.items()} == leaves
        sizes = {f.name: f.nbytes for f in layout.files}
        taken: dict[str, list[tuple[int, int]]] = {f.name: [(0, len(f.prefix))] for f in layout.files}
        for place in layout.places.values():
            taken[place.file].append((place.offset, place.offset + place.spec.nbytes))
        for file, spans in taken.items():
            spans.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(spans)), f"{file}: leaves overlap"
            assert spans[-1][1] <= sizes[file], f"{file}: a leaf lies past the end"

    def test_shards_are_bounded(self) -> None:
        leaves = {f"layer.{i}": TensorSpec((100 + i, 7), self.dtypes[-1]) for i in range(20)}
        most = 5 * max(s.nbytes for s in leaves.values())
        layout = self.container().layout(leaves, self.metadata(), most)
        for file in layout.files:
            held = [n for n, p in layout.places.items() if p.file == file.name]
            assert file.nbytes <= most or len(held) == 1, f"{file.name} has {file.nbytes} bytes, {most} are allowed"

    def test_reads_what_it_wrote(self, written: Written) -> None:
        container = self.container()
        assert container.recognizes(written.folder)
        store = pickle.loads(pickle.dumps(container.open(written.folder)))
        assert {n: store.specs[n] for n in written.arrays} == self.leaves()
        assert store.metadata.items() >= self.metadata().items()
        files = {written.folder / f.name for f in written.layout.files}
        assert files <= {*store.paths}, "a data file is not among `paths`"
        beside = {written.folder / name for name in written.layout.extra}
        assert beside == {*store.metadata_paths}, "`metadata_paths` are not the files beside the data that are read"
        rng = np.random.default_rng(0)
        for name, array in written.arrays.items():
            for box in random_boxes(store.specs[name], rng):
                where = f"{name}{list(box)}"
                assert same(store.read(name, box), cut(array, box)), f"{where} is not what was written"
                back = container.read_back(written.folder, written.layout, name, box)
                assert same(back, cut(array, box)), f"{where}: read_back is not what was written"

    def test_begin_keeps_what_is_there(self, written: Written) -> None:
        """A resumed run begins again."""
        self.container().begin(written.folder, written.layout)
        store = self.container().open(written.folder)
        for name, array in written.arrays.items():
            assert same(store.read(name), array), f"{name} did not survive a second begin"

    def test_a_box_written_again_changes_nothing_else(self, written: Written) -> None:
        container = self.container()
        name = max(written.arrays, key=lambda n: written.arrays[n].nbytes)
        box = _halves(self.leaves()[name])[-1]
        other = random_bytes(self.leaves()[name], written.arrays[name][box].shape, np.random.default_rng(1))
        container.write(written.folder, written.layout, name, box, other)
        store = container.open(written.folder)
        for n, array in written.arrays.items():
            want = np.array(array)
            if n == name:
                want[box] = other
            assert same(store.read(n), want), f"writing {name} changed {n}"

    def test_a_file_cut_short_is_an_error(self, written: Written) -> None:
        """At the first byte, in the header, in the data, one byte before the end."""
        for path in self.container().open(written.folder).paths:
            content = path.read_bytes()
            for nbytes in sorted({0, 1, 8, len(content) // 3, len(content) // 2, len(content) - 1}):
                if nbytes >= len(content):
                    continue
                path.write_bytes(content[:nbytes])
                with pytest.raises(SourceError) as why:  # noqa: PT012
                    store = self.container().open(written.folder)
                    for name in store.specs:
                        store.read(name)
                    raise AssertionError(f"{path.name} cut to {nbytes} of {len(content)} bytes was read")
                assert path.name in str(why.value), f"the error does not name {path.name}: {why.value}"
            path.write_bytes(content)

    def test_what_is_finished_verifies_and_nothing_else_does(self, written: Written) -> None:
        """A file that is cut short, or gone, or whose first byte was changed."""
        container = self.container()
        container.verify(written.folder, written.layout)
        for file in written.layout.files:
            path = written.folder / file.name
            content = path.read_bytes()
            spoilt = [content[:-1], content + b"\0"] + [bytes([content[0] ^ 1]) + content[1:]] * bool(file.prefix)
            for wrong in spoilt:
                path.write_bytes(wrong)
                with pytest.raises(StorageError, match=re.escape(path.name)):
                    container.verify(written.folder, written.layout)
            path.unlink()
            with pytest.raises(StorageError, match=re.escape(path.name)):
                container.verify(written.folder, written.layout)
            path.write_bytes(content)
        container.verify(written.folder, written.layout)

    def test_a_file_that_changes_is_an_error(self, written: Written) -> None:
        store = self.container().open(written.folder)
        path = store.paths[0]
        path.write_bytes(path.read_bytes() + b"\0")
        name = next(n for n, p in written.layout.places.items() if written.folder / p.file == path)
        with pytest.raises(SourceError):
            store.read(name)

    def test_nothing_there_is_an_error(self, tmp_path: Path) -> None:
        assert not self.container().recognizes(tmp_path)
        for source in (tmp_path, tmp_path / "missing"):
            with pytest.raises(SourceError):
                self.container().open(source)


def _halves(spec: TensorSpec) -> list[tuple[slice, ...]]:
    """Boxes that cover a tensor once: halves along the first and the last dimension that can be halved."""
    boxes: list[tuple[slice, ...]] = [tuple(slice(0, n) for n in spec.shape)]
    for dim in {0, len(spec.shape) - 1} if spec.shape else set():
        n = spec.shape[dim]
        if n > 1:
            spans = (slice(0, n // 2), slice(n // 2, n))
            boxes = [(*b[:dim], s, *b[dim + 1 :]) for b in boxes for s in spans]
    return boxes
