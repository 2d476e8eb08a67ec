"""Choosing within a budget is held against trying everything."""

from itertools import product

import numpy as np
import pytest

from pipeline.allocation import Cost, Together, cheapest, curve, grouped, smallest, total
from pipeline.errors import StageError
from pipeline.rules import Rule, choose, merged
from pipeline.tensors.spec import TensorSpec

NONE = Together(())


def some_costs(seed: int) -> dict[str, dict[str, Cost]]:
    """Five groups of other sizes, each with three to five options; more bytes often lose less."""
    rng = np.random.default_rng(seed)
    found = {}
    for group in "abcde":
        size = int(rng.integers(1_000, 50_000_000))
        names = ["int2", "int3", "int4", "int8", "keep"][: int(rng.integers(3, 6))]
        found[group] = {
            n: Cost(float(rng.lognormal(-3 - 2 * i, 1.0)), int(size * (i + 2 + rng.random())))
            for i, n in enumerate(names)
        }
    return found


@pytest.mark.parametrize("seed", range(6))
def test_no_other_choice_is_better(seed: int) -> None:
    costs = some_costs(seed)
    every = [dict(zip(costs, names, strict=True)) for names in product(*costs.values())]
    sizes = sorted(total(costs, p).nbytes for p in every)
    for nbytes in (sizes[0], sizes[len(sizes) // 5], sizes[len(sizes) // 2], sizes[-1]):
        best = min(total(costs, p).kl for p in every if total(costs, p).nbytes <= nbytes)
        found = total(costs, cheapest(costs, nbytes))
        assert found.nbytes <= nbytes
        assert found.kl == pytest.approx(best, rel=1e-5)
    kl = sorted(total(costs, p).kl for p in every)[len(every) // 3]
    least = min(total(costs, p).nbytes for p in every if total(costs, p).kl <= kl)
    found = total(costs, smallest(costs, kl, NONE))
    assert found.kl <= kl
    assert found.nbytes <= 1.02 * least
    points = [total(costs, p) for p in curve(costs)]
    assert [p.nbytes for p in points] == sorted({p.nbytes for p in points})
    assert [p.kl for p in points] == sorted((p.kl for p in points), reverse=True)
    assert points[0].nbytes == sizes[0]
    assert points[-1].kl == pytest.approx(min(total(costs, p).kl for p in every))


def test_what_cannot_be_is_said() -> None:
    costs = {"a": {"int4": Cost(0.5, 100)}, "b": {"int4": Cost(0.25, 100)}}
    with pytest.raises(StageError, match="nothing is as small as 199 bytes: the smallest of every group come to 200"):
        cheapest(costs, 199)
    with pytest.raises(
        StageError, match=r"nothing loses as little as 0\.5 nats: the best of every group come to 0\.75"
    ):
        smallest(costs, 0.5, NONE)


def test_how_losses_add_up() -> None:
    together = Together(((0.01, 0.008), (1.0, 2.0)))
    assert together.predicted(0.01) == pytest.approx(0.008)
    assert together.predicted(1.0) == pytest.approx(2.0)
    assert together.predicted(0.1) == pytest.approx(0.1 * (0.8 * 2.0) ** 0.5)  # half way between the logarithms
    assert together.predicted(1e-4) == pytest.approx(0.8e-4)
    assert together.predicted(3.0) == pytest.approx(6.0)
    assert together.predicted(0.0) == 0.0
    assert NONE.predicted(0.3) == 0.3


def test_what_others_join_goes_together() -> None:
    names = [f"l.{i}.{p}.weight" for i in range(2) for p in ("q_proj", "k_proj", "o_proj")]
    assert grouped(names, [["q_proj", "k_proj", "v_proj"]]) == {
        f"l.{i}.{group}.weight": [f"l.{i}.{p}.weight" for p in parts]
        for i in range(2)
        for group, parts in (("q_proj+k_proj+v_proj", ("q_proj", "k_proj")), ("o_proj", ("o_proj",)))
    }


def test_rules_give_each_tensor_its_own_and_no_other_any() -> None:
    names = [f"m.{i}.{p}" for i in range(12) for p in ("up", "down")] + ["head", "m.x.down", "odd[1].up"]
    to = {n: "int8" if n in ("m.3.up", "m.11.up") else "int4" for n in names if n != "m.x.down"}
    rules = merged(to, names)
    assert rules[-1] == Rule("int4", "m.*.up")
    assert len(rules) == 2 + 1 + 12 + 2  # m.*.down would take m.x.down as well
    chosen, problems = choose(rules, {}, {"int4", "int8"}, dict.fromkeys(names, TensorSpec((4, 4), "BF16")))
    assert not problems
    assert chosen == to
