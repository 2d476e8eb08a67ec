"""The journal: what was written is read back, whatever interrupted the writing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import StorageError
from pipeline.files import write_json
from pipeline.running.journal import Journal, locked

ROOT = Path(__file__).parents[3]


def test_records_come_back_and_later_ones_win(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.read() == {}
    journal.append("a", {"digest": "1"})
    journal.append("b", ["ü", None, 1.5])
    journal.append("a", {"digest": "2"})
    assert journal.read() == {"a": {"digest": "2"}, "b": ["ü", None, 1.5]}  # before close: flushed line by line
    journal.close()
    again = Journal(tmp_path / "j")
    again.append("c", 3)
    again.close()
    assert list(Journal(tmp_path / "j").read()) == ["a", "b", "c"]


def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    """kill -9 at every byte of the last line; the lines before it, and those appended after, stay."""
    path = tmp_path / "j"
    journal = Journal(path)
    journal.append("a", 1)
    journal.append("b", 2)
    journal.close()
    whole = path.read_bytes()
    end_of_a = whole.index(b"\n") + 1
    for length in range(end_of_a, len(whole) + 1):
        path.write_bytes(whole[:length])
        resumed = Journal(path)
        seen = resumed.read()
        assert seen == ({"a": 1} if length < len(whole) - 1 else {"a": 1, "b": 2})
        resumed.append("c", 3)
        resumed.close()
        assert Journal(path).read() == {**seen, "c": 3}


@pytest.mark.parametrize(
    "line", [b"not json", b"[]", b"{}", b'{"key": "x"}', b'{"key": [], "record": 1}', b"\xff\xfe", b"null", b"7"]
)
def test_lines_that_are_no_records_are_skipped(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(line + b"\n" + b'{"key": "a", "record": 1}\n')
    assert Journal(path).read() == {"a": 1}


def test_appending_where_one_cannot_write_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        Journal(tmp_path / "gone" / "j").append("a", 1)


def test_a_lock_has_one_holder_and_leaves_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "run" / ".lock"
    with locked(lock, "busy"), pytest.raises(StorageError, match="busy"), locked(lock, "busy"):
        pass
    with locked(lock, "busy"):  # and it is free again
        assert lock.exists()
    assert not lock.parent.exists()  # nor the folder, which came with it
    with locked(lock, "busy"):
        (lock.parent / "config.yaml").write_text("")
    assert [p.name for p in lock.parent.iterdir()] == ["config.yaml"]


def test_a_lock_that_its_holder_removes_meanwhile_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened before the holder removes it, locked after: such a lock keeps nobody off, and another is made."""
    lock, opened = tmp_path / ".lock", os.open

    def open_late(*args: Any) -> int:
        fd = opened(*args)
        if not seen:
            seen.append(fd)
            lock.unlink()
        return fd

    seen: list[int] = []
    monkeypatch.setattr(os, "open", open_late)
    with locked(lock, "busy"):
        assert seen
        assert lock.exists()
        with pytest.raises(StorageError, match="busy"), locked(lock, "busy"):
            pass


def test_a_file_of_the_name_of_a_lock_stays(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("mine")
    with locked(tmp_path / ".lock", "busy"):
        pass
    assert (tmp_path / ".lock").read_text() == "mine"


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    lines = ("import os", "from pathlib import Path", "from pipeline.running.journal import locked",
             f"with locked(Path({str(tmp_path)!r}) / '.lock', 'busy'): os._exit(9)")  # fmt: skip
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, check=False).returncode == 9
    with locked(tmp_path / ".lock", "busy"):
        pass


def test_a_lock_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "file" / ".lock", tmp_path, tmp_path / "link"):
        with pytest.raises(StorageError, match=path.name), locked(path, "busy"):
            pass
    assert not (tmp_path / "elsewhere").exists()


def test_json_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.json"
    write_json(path, {"ü": 1})
    assert json.loads(path.read_bytes()) == {"ü": 1}

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(StorageError, match="No space"):
        write_json(path, {"ü": 2})
    assert json.loads(path.read_bytes()) == {"ü": 1}
    assert os.listdir(tmp_path) == ["m.json"]


def test_json_shows_no_escape_sequence_and_keeps_every_name(tmp_path):
    names = {"\x1b[2J \x9b31m \u202e \u2028 \x7f \udcff ü → 😀": "\t\n"}
    path = tmp_path / "a.json"
    write_json(path, names)
    text = path.read_text(encoding="utf-8")
    assert "ü → 😀" in text
    assert not any(c in text for c in "\x1b\x9b\u202e\u2028\x7f")
    assert json.loads(text) == names
