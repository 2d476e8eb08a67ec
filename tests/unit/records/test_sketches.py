"""Quantiles are as near as is said, for values of every kind, in every order, and over several processes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.errors import ConfigError, SourceError
from pipeline.records.points import Type, Writer, file_of
from pipeline.records.sketches import Sketch
from pipeline.records.summaries import FileSummary, merged, problems, summarize

N = 20_000
RNG = np.random.default_rng(7)
STREAMS: dict[str, Callable[[], NDArray[np.float64]]] = {
    "sorted": lambda: np.sort(RNG.normal(size=N)), "reversed": lambda: np.sort(RNG.normal(size=N))[::-1],
    "constant": lambda: np.full(N, -3.3), "zeros": lambda: np.zeros(N), "Cauchy": lambda: RNG.standard_cauchy(N),
    "Pareto": lambda: RNG.pareto(0.3, N),
    "mixed": lambda: np.concatenate([-RNG.pareto(1, N), [0.0] * 99, RNG.pareto(1, N)]),
    "all exponents": lambda: RNG.choice([-1, 1], N) * 10.0 ** RNG.uniform(-300, 300, N),
    "one": lambda: np.array([1e-9]),
}  # fmt: skip
LEVELS = np.linspace(0, 1, 11)


def off(sketch: Sketch, values: NDArray[np.float64]) -> float:
    """Most error of a quantile, relative to the exact one."""
    exact = np.quantile(values, LEVELS, method="lower")
    found = np.array([sketch.quantile(q) for q in LEVELS])
    return float(np.max(np.where(exact == 0, np.abs(found), np.abs(found - exact) / np.abs(np.where(exact, exact, 1)))))


@pytest.mark.parametrize("accuracy", [0.01, 0.1])
@pytest.mark.parametrize("name", STREAMS)
def test_quantiles_are_within_the_bound(name: str, accuracy: float) -> None:
    values, whole, parts = STREAMS[name](), Sketch(accuracy), [Sketch(accuracy) for _ in range(5)]
    whole.add(values)
    for part, some in zip(parts, np.array_split(values, 5), strict=True):
        part.add(some)
    for part in parts[1:]:
        parts[0].merge(part)
    assert off(whole, values) <= accuracy * (1 + 1e-9)
    assert whole.count == parts[0].count == len(values)
    assert parts[0].to_json() == whole.to_json()
    assert Sketch.from_json(json.loads(json.dumps(whole.to_json()))).to_json() == whole.to_json()


def test_it_is_the_library_that_takes_one_after_another() -> None:
    from ddsketch import DDSketch

    values, own, theirs = STREAMS["mixed"]()[::7], Sketch(), DDSketch(0.01)
    own.add(values)
    for value in values.tolist():
        theirs.add(value)
    assert [own.quantile(q) for q in LEVELS] == [theirs.get_quantile_value(q) for q in LEVELS]


def test_a_bound_that_is_none() -> None:
    for accuracy in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"0\.0001 to 0\.5 is allowed"):
            Sketch(accuracy)
    with pytest.raises(ConfigError, match=r"accuracy 0\.1 and 0\.2"):
        Sketch(0.1).merge(Sketch(0.2))
    assert Sketch().quantile(0.5) is None
    with pytest.raises(SourceError, match="no sketch of ours"):
        Sketch.from_json({"accuracy": 0.1, "zeros": "many"})


def written(path: Path, values: NDArray[np.float64]) -> None:
    writer = Writer(path, {"train": {"loss": Type("nats", "lower")}})
    writer.lines([
        *writer.declared("train", {"loss": 0}),
        *({"kind": "train", "step": i, "loss": v if np.isfinite(v) else str(v)} for i, v in enumerate(values.tolist())),
    ])  # fmt: skip
    writer.close()


def test_summaries_go_on_and_are_the_same_as_at_once(tmp_path: Path) -> None:
    values = RNG.normal(3, 1, 3000)
    values[[5, 2000]] = np.nan, np.inf
    known: dict[str, FileSummary] = {}
    for some in np.array_split(values, 7):
        written(file_of(tmp_path), some)
        kept = {name: json.loads(json.dumps(one.to_json())) for name, one in known.items()}
        known = summarize(tmp_path, {name: FileSummary.from_json(one) for name, one in kept.items()})
    at_once = summarize(tmp_path)
    assert {n: s.to_json() for n, s in known.items()} == {n: s.to_json() for n, s in at_once.items()}
    found, finite = merged(known)["train loss"], values[np.isfinite(values)]
    assert (found.count, found.not_finite, found.unit, found.better) == (2998, 2, "nats", "lower")
    assert (found.min, found.max, found.last) == (finite.min(), finite.max(), values[-1])
    assert found.mean == pytest.approx(finite.mean(), rel=1e-12)
    assert found.deviation == pytest.approx(finite.std(ddof=1), rel=1e-9)
    assert off(found.sketch, finite) <= 0.01 * (1 + 1e-9)
    assert problems(known) == []


def test_processes_are_merged(tmp_path: Path) -> None:
    parts = RNG.standard_cauchy((4, 500))
    for i, part in enumerate(parts):
        written(file_of(tmp_path, i), part)
    both = merged(summarize(tmp_path))["train loss"]
    assert both.count == 2000
    assert both.mean == pytest.approx(parts.mean(), rel=1e-9)
    assert both.deviation == pytest.approx(parts.std(ddof=1), rel=1e-9)
    assert off(both.sketch, parts.ravel()) <= 0.01 * (1 + 1e-9)


def test_a_file_that_is_another_one_is_read_anew(tmp_path: Path) -> None:
    written(file_of(tmp_path), np.ones(50))
    known = summarize(tmp_path)
    file_of(tmp_path).unlink()
    written(file_of(tmp_path), np.full(60, 2.0))
    assert merged(summarize(tmp_path, known))["train loss"].mean == 2.0
    with pytest.raises(SourceError, match="no summary of ours"):
        FileSummary.from_json({"series": [{}], "at": {}, "accuracy": 1})
