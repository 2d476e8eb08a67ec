"""What is written goes to the disk while the rest is made: asked for where it is worth it, and never needed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import places
from pipeline.tensors.spec import TensorSpec
from plugins.formats.common import inplace
from plugins.formats.safetensors.container import SafeTensors


def test_the_system_is_asked_for_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin: Any = places._sync_file_range()
    answers: list[int] = []
    known: Callable[..., Any] = lambda *args: answers.append(begin(*args))  # noqa: E731
    monkeypatch.setattr(places, "_sync_file_range", lambda: known)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"x" * 10_000)
    places.write_back(fd)
    os.close(fd)
    places.write_back(fd)  # not even a file any more: nothing is said, because nothing was promised
    assert answers == [0, -1]


def test_where_it_cannot_be_asked_for_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_sync_file_range", lambda: None)
    places.write_back(-1)


def test_large_boxes_are_on_their_way_when_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(inplace, "write_back", lambda fd: asked.append(os.readlink(f"/proc/self/fd/{fd}")))
    leaves = {"large": TensorSpec((1, inplace.WRITE_BACK_NBYTES), "U8"), "small": TensorSpec((7,), "U8")}
    container = SafeTensors()
    layout = container.layout(leaves, {}, None)
    container.begin(tmp_path, layout)
    for name, spec in leaves.items():
        container.write(tmp_path, layout, name, (), np.ones(spec.shape, np.uint8))
    assert asked == [str(tmp_path / "model.safetensors")]
