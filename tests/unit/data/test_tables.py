"""Tables: what becomes of columns, what is fitted on which rows, what is wrong with files and where."""

import csv

import numpy as np
import pytest

from pipeline.errors import ConfigError, PlanError
from pipeline.stage import Checkpoint
from pipeline.testing.memory import MemoryStore
from plugins.data.tables import Table
from tests.cases.opened import opened

CUTS = ("Fair", "Good", "Ideal")


def written(tmp_path, name, rows, header=("carat", "cut", "city", "price")):
    path = tmp_path / name
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def some(n, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (round(rng.uniform(0.2, 3), 3), CUTS[rng.integers(3)], f"C,{rng.integers(4)}", rng.integers(100, 9000))
        for _ in range(n)
    ]


def table(*files, **options):
    given = {"target": "price", "ordinal": {"cut": CUTS}, "one_hot": ("city",), "held_out": 0.0}
    return Table(files, **{**given, **options})


def all_of(examples):
    return examples.batch(np.arange(len(examples)))


def test_columns(tmp_path):
    rows = some(300)
    batch = all_of(opened(table(written(tmp_path, "a.csv", rows), log=("price",)), tmp_path).train)
    carat, cut, price = (
        np.array(c, np.float64)
        for c in ([r[0] for r in rows], [CUTS.index(r[1]) for r in rows], np.log([r[3] for r in rows]))
    )
    expected = [(x - x.mean()) / x.std() for x in (carat, cut, price)]
    np.testing.assert_allclose(batch["inputs"][:, 0], expected[0], atol=1e-5)
    np.testing.assert_allclose(batch["inputs"][:, 1], expected[1], atol=1e-5)
    np.testing.assert_allclose(batch["targets"], expected[2], atol=1e-5)
    places = [["C,0", "C,1", "C,2", "C,3"].index(r[2]) for r in rows]
    np.testing.assert_array_equal(batch["inputs"][:, 2:], np.eye(4)[places])
    assert (batch["weights"] == 1).all()


def test_as_they_are(tmp_path):
    rows = some(50)
    data = table(written(tmp_path, "a.csv", rows), standardize=False, features=("carat", "cut"), one_hot=())
    splits = opened(data, tmp_path)
    batch = all_of(splits.train)
    np.testing.assert_allclose(batch["inputs"], [[r[0], CUTS.index(r[1])] for r in rows], rtol=1e-6)
    np.testing.assert_allclose(batch["targets"], [r[3] for r in rows])
    assert splits.train.specs == {n: (a.shape[1:], a.dtype.name) for n, a in batch.items()} == data.plan(None).specs


def test_classes(tmp_path):
    rows = some(50)
    data = table(written(tmp_path, "a.csv", rows), target="cut", classes=CUTS, ordinal={})
    batch = all_of(opened(data, tmp_path).train)
    assert batch["targets"].tolist() == [CUTS.index(r[1]) for r in rows]
    assert batch["targets"].dtype == np.int32
    assert data.plan(None).specs["targets"] == ((), "int32")


def test_means_are_of_the_rows_to_train_on(tmp_path):
    """What is held out tells training nothing."""
    file, other = written(tmp_path, "a.csv", some(400)), written(tmp_path, "b.csv", [(1e6, "Fair", "C,0", 1)] * 9)
    splits = opened(table(file, held_out_files=(other,)), tmp_path)
    np.testing.assert_allclose(all_of(splits.train)["inputs"][:, :2].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(all_of(splits.train)["inputs"][:, :2].std(0), 1, atol=1e-5)
    assert (all_of(splits.held_out)["inputs"][:, 0] > 1e5).all()
    [same] = table(file, held_out_files=(other, file)).check(None)
    assert (same.where, "is trained on too" in same.message) == ("data.held_out_files", True)
    mean = np.mean([r[0] for r in some(400)])
    assert splits.facts["columns"]["carat"]["mean"] == pytest.approx(mean, rel=1e-6)
    shared = opened(table(file, held_out=0.2), tmp_path)
    assert len(shared.train) + len(shared.held_out) == 400
    assert 50 < len(shared.held_out) < 110
    np.testing.assert_allclose(all_of(shared.train)["targets"].mean(), 0, atol=1e-5)
    copies = opened(table(written(tmp_path, "c.csv", some(400) * 2), held_out=0.2), tmp_path)
    assert len(copies.held_out) == 2 * len(shared.held_out)


def test_the_values_of_all_files(tmp_path):
    one, two = written(tmp_path, "a.csv", [(1, "Fair", "z", 3)]), written(tmp_path, "b.csv", [(2, "Good", "a", 5)])
    batch = all_of(opened(table(one, two), tmp_path).train)
    np.testing.assert_array_equal(batch["inputs"][:, 2:], [[0, 1], [1, 0]])


def test_a_column_of_one_value_and_another_delimiter(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("\ufeffx;y\r\n5;1\r\n 5 ;2\r\n\r\n5;3\r\n".encode())
    batch = all_of(opened(Table((str(path),), "y", delimiter=";", held_out=0), tmp_path).train)
    np.testing.assert_array_equal(batch["inputs"], np.zeros((3, 1)))
    np.testing.assert_allclose(batch["targets"], np.array([-1, 0, 1]) * np.sqrt(1.5), rtol=1e-6)


BAD = {
    "NaN": ("x,y\n1,2\nnan,3\n", {}, [("line 3", "column 'x': nan is no finite number")]),
    "nothing": ("x,y\n1,2\n,inf\n", {}, [("line 3", "'x': '' is no number"), ("line 3", "'y': inf is no finite")]),
    "too large": ("x,y\n1,2\n-1e39,1\n", {}, [("line 3", "column 'x': -1e39 is too large for fp32")]),
    "a word": ("x,y\na,2\n", {}, [("line 2", "'a' is no number; data.ordinal and data.one_hot are for what is")]),
    "another value": (
        "x,y\nBig,2\n", {"ordinal": {"x": ("small", "big")}},
        [("line 2", "'Big' is not one of the values in data.ordinal.x; did you mean 'big'?")],
    ),
    "a class": ("x,y\n1,c\n", {"classes": ("a", "b")}, [("line 2", "'c' is not one of the values in data.classes")]),
    "no logarithm": ("x,y\n0,2\n", {"log": ("x",)}, [("line 2", "column 'x': 0 has no logarithm")]),
    "fields": ("x,y\n1,2\n1\n1,2,3\n", {}, [("line 3", "has 1 fields; the first line names 2"), ("line 4", "has 3")]),
    "no rows": ("x,y\n", {}, [("a.csv", "has the names of columns, and no rows")]),
    "no column": (
        "x,z\n1,2\n", {"log": ("X",)},
        [("line 1", "no column 'y', which data.target names"), ("line 1", "no column 'X', which data.log names; did")],
    ),
    "twice": ("x,x,y\n1,1,2\n", {}, [("line 1", "two columns have the same name")]),
    "a quote": ('x,y\n1,2\n"1,2\n', {}, [("line 3", "is no CSV")]),
    "no text": (b"x,y\n1,2\n\xff,2\n", {}, [("line 3", "is no UTF-8: byte 0xff")]),
    "empty": ("", {}, [("a.csv", "is empty")]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_file_and_line(name, tmp_path):
    raw, options, expected = BAD[name]
    path = tmp_path / "a.csv"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    data = Table((str(path),), "y", held_out=0, **options)
    found = data.check(None)
    assert len(found) == len(expected), found
    for problem, (where, what) in zip(found, expected, strict=True):
        assert where in problem.where
        assert problem.where.startswith(str(path) if problem is found[0] else "a.csv, ")  # the path is said once
        assert what in problem.message
    with pytest.raises(PlanError) as error:
        opened(data, tmp_path)
    assert error.value.problems == found


def test_files_of_other_columns(tmp_path):
    one, two = written(tmp_path, "a.csv", some(3)), written(tmp_path, "b.csv", [(1, 2)], ("carat", "price"))
    (problem,) = table(one, two, ordinal={}, one_hot=(), features=None).check(None)[-1:]
    assert "has other columns than the files before it, which have carat, cut, city, price" in problem.message


def test_a_model_for_other_rows(tmp_path):
    data = table(written(tmp_path, "a.csv", some(30)))
    model = Checkpoint(MemoryStore({}), config={"model_type": "mlp", "inputs": 6, "outputs": 1})
    assert not data.check(model)
    found = data.check(Checkpoint(MemoryStore({}), config={"inputs": 9, "outputs": 2}))
    assert [str(p) for p in found] == [
        "config.json inputs: is 9; the data have 6", "config.json outputs: is 2; the data have 1"
    ]  # fmt: skip


def test_options_that_cannot_be():
    for options in ({"held_out": 1}, {"delimiter": ",,"}, {"classes": ("a",)}):
        with pytest.raises(ConfigError, match=f"data.{next(iter(options))}="):
            Table(("a",), "y", **options)


def test_all_rows_held_out(tmp_path):
    with pytest.raises(PlanError, match="all rows are held out"):
        opened(table(written(tmp_path, "a.csv", some(1)), held_out=0.9999), tmp_path)


def test_what_was_made_is_found_again(tmp_path, monkeypatch):
    file = written(tmp_path, "a.csv", some(30))
    first = all_of(opened(table(file), tmp_path).train)
    monkeypatch.setattr(Table, "_make", None)
    again = all_of(opened(table(file, standardize=False, held_out=0.5), tmp_path).train)
    assert len(again["inputs"]) < len(first["inputs"])
    with pytest.raises(TypeError):
        opened(table(file, log=("price",)), tmp_path)


def test_another_delimiter_is_seen(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a;b;price\n1;2;3\n")
    (problem,) = Table((str(path),), "price").check(None)
    assert str(problem).endswith("has one column, 'a;b;price'; data.delimiter=';' seems to be what is between fields")


def test_a_plan_says_what_is_held_out(tmp_path):
    files = [written(tmp_path, n, some(200)) for n in ("a.csv", "b.csv")]
    plan = table(files[0], held_out=0.25, held_out_files=(files[1],)).plan(None)
    assert (plan.examples, plan.held_out) == (pytest.approx(150, abs=8), pytest.approx(250, abs=14))
