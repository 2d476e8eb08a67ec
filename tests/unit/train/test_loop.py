"""Updates go on after whatever ended them, with the same bits."""

import errno
import json
import os
import shutil
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.errors import StageError, StorageError
from pipeline.training import Splits
from plugins.train.checkpoints import Checkpoints
from plugins.train.loop import Found, Loop, Plan, Programs
from plugins.train.options import Looking, Saving
from tests.cases import trained
from tests.cases.toy_rows import Rows

# Orbax closes its event loop where a state cannot be read, before all that it had begun to read has come.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
KIND = "llama"
ROWS = 4


def plan(**changed: Any) -> Plan:
    usual = Plan(8, ROWS, ROWS // 2, 0, Saving(every=2, seconds=None), Looking())
    return replace(usual, **changed)


@cache
def programs() -> Programs:
    return Programs(trained.step_of(KIND))


def run(
    data: Rows, folder: Path | None = None, held_out: Rows | None = None, resume: Path | None = None, **changed: Any
) -> Found:
    step = trained.step_of(KIND)
    loop = Loop(plan(**changed), programs(), Splits(data, held_out))
    begin = lambda: step.init(trained.parameters(KIND))  # noqa: E731
    return loop.run(begin, step.described(trained.parameters(KIND), jax.devices()[0]), folder, resume=resume)


def same(a: Found, b: Found) -> None:
    for name in a.parameters:
        np.testing.assert_array_equal(a.parameters[name], b.parameters[name], name)


def rows(folder: Path, kind: str = "train") -> list[dict[str, Any]]:
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [r for r in found if r["kind"] == kind]


def test_what_was_ended_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = run(Rows())
    with pytest.raises(RuntimeError, match="killed"):
        run(Rows(dies_after=6), tmp_path)
    again = Rows()
    found = run(again, tmp_path)
    assert found.began > 0
    assert len(again.asked) == 8 - found.began  # what was done was not done again
    same(whole, found)
    assert [r["step"] for r in rows(tmp_path)] == [*range(1, 9)]
    assert found.progress.amount == whole.progress.amount
    assert found.loss == whole.loss


def test_the_last_tenth_of_updates_may_be_of_several_tries(tmp_path: Path) -> None:
    whole = run(Rows(), steps=21)
    with pytest.raises(RuntimeError, match="killed"):
        run(Rows(dies_after=20), tmp_path, steps=21)
    found = run(Rows(), tmp_path, steps=21)
    assert (found.began, found.made) == (20, 1)
    last = [r["loss"] for r in rows(tmp_path)][-2:]
    assert found.loss == whole.loss == sum(last) / 2 != last[1]


def test_micro_batches_change_nothing_but_the_order_of_adding(tmp_path: Path) -> None:
    for a, b in zip(run(Rows()).parameters.values(), run(Rows(), at_once=ROWS).parameters.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


@pytest.mark.parametrize("how", ["overwritten", "one bit of each value"])
def test_a_damaged_state_is_said_and_the_one_before_it_taken(how: str, tmp_path: Path) -> None:
    whole = run(Rows())
    with pytest.raises(RuntimeError, match="killed"):
        run(Rows(dies_after=7), tmp_path)
    states = sorted(int(p.name) for p in (tmp_path / "states").iterdir())
    assert len(states) == 2
    for file in (tmp_path / "states" / str(states[-1]) / "state").rglob("*"):
        if how == "overwritten" and file.is_file() and "manifest" in file.name:
            file.write_bytes(b"damaged")
        elif how != "overwritten" and file.is_file() and file.parent.name == "d" and file.stat().st_size > 1000:
            content = bytearray(file.read_bytes())
            content[len(content) // 2] ^= 1
            file.write_bytes(content)
    found = run(Rows(), tmp_path)
    assert found.began == states[0]
    same(whole, found)


@pytest.mark.parametrize("was", ['"metrics_nbytes": ', '"digests"', '"own"'])
def test_what_is_damaged_beside_a_state_is_no_beginning(was: str, tmp_path: Path) -> None:
    whole = run(Rows())
    with pytest.raises(RuntimeError, match="killed"):
        run(Rows(dies_after=7), tmp_path)
    states = sorted(int(p.name) for p in (tmp_path / "states").iterdir())
    file = tmp_path / "states" / str(states[-1]) / "progress" / "metadata"
    before = file.read_text()
    changed = before.replace(was, f"{was}1" if was.endswith(" ") else was.replace('"', '"x', 1))
    assert changed != before
    file.write_text(changed)
    found = run(Rows(), tmp_path)
    assert found.began == states[0]
    same(whole, found)
    assert [r["step"] for r in rows(tmp_path)] == [*range(1, 9)]


def test_states_that_cannot_be_read_are_no_beginning(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="killed"):
        run(Rows(dies_after=6), tmp_path)
    for state in (tmp_path / "states").glob("*/state"):
        shutil.rmtree(state)
    with pytest.raises(StorageError, match="begins anew"):
        run(Rows(), tmp_path)


def test_a_loss_that_is_not_finite_stops_and_keeps_what_was_good(tmp_path: Path) -> None:
    good = run(Rows(), steps=3)
    spoilt = int(np.flatnonzero([r not in _taken(3) for r in range(20)])[0])
    at = next(s for s in range(3, 20) if spoilt in _taken(s + 1))
    with pytest.raises(StageError, match=rf"update {at + 1}: the loss is nan.*embed_tokens.weight: nan.*is kept"):
        run(Rows(broken={spoilt: np.nan}), tmp_path, steps=8)
    with pytest.raises(StageError, match=rf"update {at + 1}: the loss is nan.*is kept"):
        run(Rows(broken={spoilt: np.nan}), tmp_path, steps=8)
    last = rows(tmp_path)[-1]
    assert (last["step"], last["loss"]) == (at + 1, "nan")
    assert [r["step"] for r in rows(tmp_path)] == [*range(1, at + 2)]  # of both tries, each once
    assert max(int(p.name) for p in (tmp_path / "states").iterdir()) == at
    if at == 3:
        same(good, run(Rows(), tmp_path, steps=3))


def _taken(steps: int) -> set[int]:
    from pipeline.training import indices

    return {int(i) for s in range(steps) for i in indices(0, s, ROWS, 20)}


def test_what_is_held_out_counts_once_whatever_the_batch() -> None:
    data = Rows()
    found = [run(data, held_out=Rows(7, seed=3), steps=1, at_once=n).progress.first for n in (2, 4)]
    assert found[0] is not None
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    few = run(data, held_out=Rows(7, seed=3), steps=1, look=Looking(examples=3)).progress.first
    assert few != pytest.approx(found[0], rel=1e-4)


def test_training_stops_when_it_gets_no_better_and_gives_the_best(tmp_path: Path) -> None:
    """What is held out has other targets: learning these by heart makes it worse."""
    look = Looking(every=1, patience=2)
    found = run(Rows(4), tmp_path, Rows(4, seed=9), steps=30, look=look)
    losses = {r["step"]: r["loss"] for r in rows(tmp_path, "held_out")}
    best = min(losses, key=losses.__getitem__)
    assert "no better for 2 evaluations" in found.stopped
    assert (found.step, found.made, max(losses)) == (best, best + 2, best + 2)
    assert best > 0
    same(found, run(Rows(4), steps=best))


def test_norms_of_groups_are_in_the_rows(tmp_path: Path) -> None:
    run(Rows(), tmp_path, steps=1, look=Looking(groups=("*", "*norm.weight")))
    [row] = rows(tmp_path)
    assert row["gradient_norm *"] == pytest.approx(row["gradient_norm"], rel=1e-6)
    assert 0 < row["gradient_norm *norm.weight"] < row["gradient_norm"]
    before, after = trained.parameters(KIND), run(Rows(), steps=1).parameters
    for pattern in ("*", "*norm.weight"):
        changes = [np.asarray(after[n]) - w for n, w in before.items() if fnmatchcase(n, pattern)]
        total = sum(float(np.square(c, dtype=np.float64).sum()) for c in changes) ** 0.5
        assert row[f"update_norm {pattern}"] == pytest.approx(total, rel=1e-3)


def test_what_a_run_measures_again_and_again_leaves_compiling_out(tmp_path: Path) -> None:
    found = run(Rows(), tmp_path, Rows(4, seed=9), look=Looking(every=4), look_share=0.5)
    seconds, times = found.repeated
    assert times == 7 + 2 * 0.5  # 8 updates and 3 evaluations, the first of each compiled meanwhile
    said = rows(tmp_path)
    assert found.seconds == pytest.approx(sum(r["seconds"] for r in said[1:]))
    assert found.seconds < seconds
    assert "tokens_per_s" not in said[0]
    assert all(r["tokens_per_s"] > 0 for r in said[1:])


def test_another_training_goes_on_from_where_one_had_come(tmp_path: Path) -> None:
    """More updates than were planned at first: those that were done are not done again, and the rest are the same."""
    with pytest.raises(RuntimeError, match="killed"):
        run(Rows(dies_after=6), tmp_path / "first", steps=8)
    again = Rows()
    found = run(again, tmp_path / "second", steps=12, resume=tmp_path / "first")
    assert found.began > 0
    same(run(Rows(), steps=12), found)
    assert [r["step"] for r in rows(tmp_path / "second")] == [*range(1, 13)]
    assert (tmp_path / "first" / "states").is_dir()  # and nothing of it was touched
    with pytest.raises(StageError, match=r"after update \d, and these are 2 in all; train.steps=\d gives its weights"):
        run(Rows(), tmp_path / "third", steps=2, resume=tmp_path / "first")
    saved = Checkpoints(tmp_path / "first" / "states", None)
    like = trained.step_of(KIND).init(trained.parameters(KIND))
    assert saved.unlike(like) is None
    [name, *_] = like["parameters"]
    assert saved.unlike({**like, "more": like["step"]}) == "more is not there"
    assert saved.unlike({"step": like["step"], "parameters": like["parameters"]}).endswith(" more are not here")
    other = {**like, "parameters": {**like["parameters"], name: like["parameters"][name][:1]}}
    assert f"parameters.{name} is (" in saved.unlike(other)
    saved.close()


def test_nothing_to_go_on_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="no state of a training"):
        run(Rows(), tmp_path / "second", resume=tmp_path)


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("orbax.checkpoint.CheckpointManager.save", full)
    with pytest.raises(StorageError, match=r"cannot be saved: No space left on device .*bytes free"):
        run(Rows(), tmp_path)
