"""Blocks that are quantized one after another: what is said of their inputs, against runs of models that were quantized
before; and equal bytes after a kill."""

import tempfile
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.coded_store import CodedStore, Unpacked
from pipeline.ops import Kernel
from pipeline.stage import Checkpoint
from pipeline.tensors.views import MappedStore
from stages.calibrate import likely
from tests.cases import model_runs
from tests.cases.quantized import quant_method
from tests.sharding import models

ROWS = np.random.default_rng(1).integers(0, models.VOCAB, (5, 24)).tolist()
TOGETHER = len(ROWS)  # in a batch, so that a step is one program; where another is asked for, the last has fewer rows
Found = dict[str, Any]
Said = list[tuple[int, frozenset[str], Found]]


def read(folder: Path, file: str) -> Found:
    """Statistics of a file, with XᵀX themselves."""
    found: Found = {}
    with np.load(folder / file) as kept:
        for key in kept.files:
            name, _, what = key.rpartition("/")
            if what == "hessian":
                found[key] = np.load(folder / str(kept[key]))[tuple(kept[f"{name}/part"])]
            elif what != "part":
                found[key] = kept[key]
    return found


def observed(checkpoint: Checkpoint, folder: Path) -> list[Found]:
    """Of a model as it is, block by block."""
    folder.mkdir()
    model_runs.engine().observe(checkpoint, ROWS, TOGETHER, folder, hessian=True)
    return [read(folder, f"layers.{i}.npz") for i in range(2)]


@cache
def method() -> Any:
    return replace(quant_method("int4"), block_elems=32)


def coded(checkpoint: Checkpoint, names: Collection[str]) -> Checkpoint:
    """Rounded to the nearest."""
    return replace(checkpoint, store=CodedStore(checkpoint.store, dict.fromkeys(names, method()), measure=False))


def decoded(checkpoint: Checkpoint, names: set[str]) -> Checkpoint:
    """The same as fp32."""
    unpack = Kernel("dequantize", ("numpy",))
    return replace(
        checkpoint, store=MappedStore(coded(checkpoint, names).store, Unpacked(frozenset(names), unpack, "F32"))
    )


def followed(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    within: bool,
    then: Callable[[Collection[str]], Checkpoint],
    becomes: Checkpoint | None = None,
    batch: int = TOGETHER,
) -> Said:
    """What was said of each group, when it was to be quantized."""
    folder.mkdir(exist_ok=True)
    said = []

    def rounded(block: int, part: int, names: frozenset[str]) -> Checkpoint:
        said.append((block, names, read(folder, "successive.npz")))
        return then(names)

    names = frozenset(likely(checkpoint))
    becomes = becomes or coded(checkpoint, names)
    model_runs.engine().observe(
        checkpoint, ROWS, batch, folder, hessian=True, coded=becomes, names=names, within=within, rounded=rounded
    )
    assert [p.name for p in folder.iterdir()] == ["hidden.2.npy"]
    return said


@cache
def plainly(kind: str) -> list[Found]:
    """`observed` of a model that nothing was done to."""
    return observed(models.checkpoint(kind), Path(tempfile.mkdtemp()) / "was")


@cache
def part_by_part(kind: str) -> tuple[Said, bytes]:
    """`followed` of each group that is quantized after what it takes; and what the last block handed on."""
    plain, folder = models.checkpoint(kind), Path(tempfile.mkdtemp())
    said = followed(plain, folder, within=True, then=lambda names: coded(plain, names))
    return said, (folder / "hidden.2.npy").read_bytes()


def close(found: Found, wanted: Found) -> None:
    for key, array in found.items():
        size = np.abs(wanted[key]).max()
        np.testing.assert_allclose(array, wanted[key], rtol=1e-4, atol=1e-5 * size, err_msg=key)


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "qwen3_moe", "gemma3"])
@pytest.mark.brief("gpt_oss")
def test_where_nothing_changes_inputs_are_those_of_the_model(kind: str, tmp_path: Path, thorough: bool) -> None:
    """In `make test`, of whole blocks: of groups the next test says it."""
    plain, wanted = models.checkpoint(kind), plainly(kind)
    found = followed(plain, tmp_path / "blocks", within=False, then=lambda _: plain, becomes=plain, batch=2)
    assert [block for block, *_ in found] == [0, 1]
    if thorough:
        parts = followed(plain, tmp_path / "matrices", within=True, then=lambda _: plain, becomes=plain)
        assert sorted(name for _, names, _ in parts for name in names) == sorted(likely(plain))
        found += parts
    for block, names, statistics in found:
        assert {key.rpartition("/")[0] for key in statistics} == names
        close(statistics, wanted[block])


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
@pytest.mark.brief("gpt_oss")
def test_inputs_are_those_that_quantized_weights_before_give(kind: str, tmp_path: Path, thorough: bool) -> None:
    """In `make test`, of groups: the first, and the last, whose inputs all before it change."""
    plain, was = models.checkpoint(kind), plainly(kind)
    done = {n for n in likely(plain) if ".layers.0." in n}
    half = observed(decoded(plain, done), tmp_path / "half")
    whole = followed(plain, tmp_path / "blocks", within=False, then=lambda names: coded(plain, names))
    assert [block for block, *_ in whole] == [0, 1]
    assert {name for _, names, _ in whole for name in names} == {*likely(plain)}
    close(whole[0][2], was[0])
    close(whole[1][2], half[1])
    q = next(n for n in likely(plain) if "layers.1" in n and "q_proj" in n)
    change = np.abs(half[1][f"{q}/hessian"] - was[1][f"{q}/hessian"]).max() / np.abs(was[1][f"{q}/hessian"]).max()
    assert change > 1e-3, "or the model as it was would do"
    groups = part_by_part(kind)[0]
    assert sorted(name for _, names, _ in groups for name in names) == sorted(likely(plain))
    before = set[str]()
    parts = [(names, found) for block, names, found in groups if block == 0]
    qkv, o, *_ = ({name.rsplit(".", 2)[1] for name in names} for names, _ in parts)
    assert (qkv, o) == ({"q_proj", "k_proj", "v_proj"}, {"o_proj"})
    for n, (names, found) in enumerate(parts):
        assert {key.rpartition("/")[0] for key in found} == names
        if thorough or n in (0, len(parts) - 1):
            close(found, observed(decoded(plain, before), tmp_path / str(n))[0] if before else was[0])
        before |= names


def test_a_killed_one_goes_on_with_the_block_that_was_not_done(tmp_path: Path) -> None:
    plain = models.checkpoint("gpt_oss")
    whole, end = part_by_part("gpt_oss")

    def killed(names: Collection[str]) -> Checkpoint:
        if any("layers.1" in n and "o_proj" in n for n in names):
            raise KeyboardInterrupt
        return coded(plain, names)

    with pytest.raises(KeyboardInterrupt):
        followed(plain, tmp_path / "killed", within=True, then=killed)
    rest = followed(plain, tmp_path / "killed", within=True, then=lambda names: coded(plain, names))
    again = [of for of in whole if of[0] == 1]
    assert [(b, names) for b, names, _ in rest] == [(b, names) for b, names, _ in again]
    for (_, _, found), (_, _, wanted) in zip(rest, again, strict=True):
        assert found.keys() == wanted.keys()
        for key, array in found.items():
            np.testing.assert_array_equal(array, wanted[key], err_msg=key)
    assert (tmp_path / "killed" / "hidden.2.npy").read_bytes() == end
