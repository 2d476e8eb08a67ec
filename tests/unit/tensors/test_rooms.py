"""Memory that reads use again: only what nobody holds, in a thread of its own, within chunks."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from pipeline.errors import StorageError
from pipeline.running.tasks import finish
from pipeline.tensors import rooms
from pipeline.tensors.spec import TensorSpec
from plugins.formats.common.boxes import read_box

NBYTES = 3 * rooms.LEAST_NBYTES


@pytest.fixture(autouse=True)
def none_kept() -> Iterator[None]:
    rooms.let_go()
    yield
    rooms.let_go()


def _address(array: Any) -> int:
    return int(array.ctypes.data)


def test_what_is_gone_makes_room_for_what_is_read_next() -> None:
    with rooms.reused():
        first = rooms.unfilled(NBYTES)
        at = _address(first)
        assert at % rooms.LINE_NBYTES == 0
        del first
        assert _address(rooms.unfilled(NBYTES)) == at
        assert _address(rooms.unfilled(NBYTES - 5)) == at
    with rooms.reused():  # of the next chunk
        assert _address(rooms.unfilled(NBYTES)) == at


@pytest.mark.parametrize("held", [lambda a: a, lambda a: a[5:9].view(np.uint16)[:1], lambda a: memoryview(a)[3:4]])
def test_what_is_held_stays(held: Any) -> None:
    with rooms.reused():
        one = rooms.unfilled(NBYTES)
        one[:] = 7
        part = held(one)
        del one
        other = rooms.unfilled(NBYTES)
        other[:] = 9
    assert np.asarray(part).tobytes() == b"\x07" * np.asarray(part).nbytes


def test_outside_chunks_and_in_other_threads_memory_is_its_readers() -> None:
    first = rooms.unfilled(NBYTES)
    first[:] = 1
    found: list[int] = []
    with rooms.reused():
        mine = _address(rooms.unfilled(NBYTES))
        other = threading.Thread(target=lambda: found.append(_address(rooms.unfilled(NBYTES))))
        other.start()
        other.join()
        assert found != [mine]
    assert not rooms._rooms.keys() - {threading.get_ident()}
    rooms.unfilled(NBYTES)[:] = 2
    assert (first == 1).all()


def test_large_rooms_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "MOST_NBYTES", NBYTES)
    with rooms.reused():
        rooms.unfilled(NBYTES - rooms.LINE_NBYTES)
    assert rooms._rooms
    with rooms.reused():
        rooms.unfilled(NBYTES + 1)
    assert not rooms._rooms


def test_boxes_are_read_there(tmp_path: Path) -> None:
    values = np.arange(4 << 20, dtype=np.int32).reshape(4, 1024, 1024)
    (tmp_path / "file").write_bytes(b"head" + values.tobytes())
    spec = TensorSpec(values.shape, "I32")
    with rooms.reused(), (tmp_path / "file").open("rb") as file:
        at = set()
        for i in range(4):
            read = read_box(file.fileno(), 4, spec, (slice(i, i + 1),), "file")
            assert (read == values[i : i + 1]).all()
            at.add(_address(read))
            del read
        assert len(at) == 1
        both = [read_box(file.fileno(), 4, spec, (slice(i, i + 1),), "file") for i in (2, 3)]
        assert (both[0] == values[2:3]).all()
        assert (both[1] == values[3:4]).all()


def test_what_cannot_be_finished_keeps_none() -> None:
    class Work:
        def finish(self, records: Any) -> Any:
            rooms.unfilled(NBYTES)
            raise StorageError("full")

    with pytest.raises(StorageError):
        finish(cast(Any, Work()), ())
    assert not rooms._rooms
