"""A kept baseline: batch by batch in and out, whole or not there."""

import errno
import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from pipeline.engine import Against
from pipeline.errors import StorageError
from plugins.engine import score
from plugins.engine.score import Baseline, Kept, keep_head

HEAD = np.arange(12, dtype=np.float32).reshape(4, 3)


def hidden(i: int) -> np.ndarray:
    return (np.arange(30).reshape(2, 5, 3) + i).astype(ml_dtypes.bfloat16)


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    with Kept(tmp_path / "folder" / "kept.npz") as kept:
        for i in range(3):
            kept.add(hidden(i))
        assert not kept.path.exists()
        kept.finish()
    assert [p.name for p in kept.path.parent.iterdir()] == ["kept.npz"]
    head = tmp_path / "head.npz"
    runtime: Any = SimpleNamespace(head=lambda: (HEAD, 30.0), spread=None)
    assert keep_head(runtime, head) == keep_head(runtime, None)
    with Baseline(Against(kept.path, head)) as base:
        assert base.softcap == 30.0
        assert np.array_equal(base.head, HEAD)
        for i in (2, 0, 1):
            assert base.hidden(i).dtype == ml_dtypes.bfloat16
            assert np.array_equal(base.hidden(i), hidden(i))


def test_nothing_is_held_of_a_batch_that_is_written(tmp_path: Path) -> None:
    with Kept(tmp_path / "kept.npz") as kept:
        batch = hidden(0)
        seen = weakref.ref(batch)
        kept.add(batch)
        del batch
        gc.collect()
        assert seen() is None


def test_what_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def keep() -> None:
        with Kept(tmp_path / "kept.npz") as kept:
            kept.add(hidden(0))
            monkeypatch.setattr(np.lib.format, "write_array", full)
            kept.add(hidden(1))

    with pytest.raises(StorageError, match="No space"):
        keep()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(("most", "blocks"), [(1, [1] * 10), (3, [3] * 4), (4, [4] * 3), (9, [5] * 2), (10, [10])])
def test_a_block_of_positions_is_one_call(
    most: int, blocks: list[int], compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never position by position, for each of which a kernel reads the head; and there is room for its logits."""
    monkeypatch.setattr(score, "LOGITS_NBYTES", most * 4 * 7)
    x, targets = np.arange(30, dtype=np.float32).reshape(2, 5, 3), np.arange(10, dtype=np.int32).reshape(2, 5)
    seen: list[tuple[int, ...]] = []

    def of(args: Any) -> Any:
        h, target = args
        seen.append(h.shape)
        return h.sum(-1) * target

    def of_all(*args: Any) -> Any:
        return score._by_blocks(of, args, 7)

    run = jax.jit(of_all) if compiled else of_all
    np.testing.assert_array_equal(run(x, targets), x.sum(-1).reshape(-1) * targets.reshape(-1))
    assert {n for n, d in seen} <= {*blocks, 10 % blocks[0] or blocks[0]}
    assert all(d == 3 for _, d in seen)
    assert len(seen) == (1 if compiled else len(blocks))
