"""Backends: the tree is the registry, one is chosen before any is called, and nothing about that is forgotten."""

import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline import backends, meter
from pipeline.backends import Backend
from pipeline.config import kernels
from pipeline.digest import described, identity
from pipeline.errors import ConfigError, StageError
from pipeline.ops import Choice, Kernel, Request
from pipeline.tensors.scheme import MXFP4
from pipeline.tensors.spec import TensorSpec
from plugins.models.qwen.family import Qwen
from tests.cases import guests, model_runs

MODULES = {
    "plugins.kernels.number.reference": "def number(x):\n    return x\n",
    "plugins.numbers.odd": (
        "def number(x):\n    assert x % 2, 'called with what it declines'\n    return x\n"
        "def declines(request):\n    return 'even numbers' if request.get('x', 1) % 2 == 0 else None\n"
    ),
    "plugins.numbers.small": (
        "def number(x):\n    return x\n"
        "def declines(request):\n    x = request.get('x', 0)\n    return f'{x} is too large' if x > 100 else None\n"
    ),
    "plugins.numbers.elsewhere": (
        "from pipeline.backends import Backend\nBACKEND = Backend(platforms=('tpu',), resident=7)\n"
        "def number(x):\n    return x\n"
    ),
    "plugins.numbers.many": "def number(x):\n    return x\ndef together(calls):\n    return list(calls)\n",
    "plugins.numbers.empty": "",
}


@pytest.fixture(scope="module", autouse=True)
def guest(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A user's folder with an op of its own, and backends for it."""
    with guests.guest(tmp_path_factory.mktemp("guest"), MODULES) as folder:
        yield folder


ODD, SMALL, MANY = "plugins.numbers.odd", "plugins.numbers.small", "plugins.numbers.many"


def number(*names: str) -> Kernel:
    return Kernel("number", names)


def test_calls_together_are_at_once_where_a_backend_can() -> None:
    """Where one backend runs them all and says how; else one by one. What ran and what declined is counted as ever."""
    with meter.metered() as measured:
        assert number(MANY).together((1,), (2,), (3,)) == [(1,), (2,), (3,)]
        assert number(ODD, MANY).together((2,), (4,)) == [(2,), (4,)]
        assert number(ODD, MANY).together((1,), (4,)) == [1, 4]
        assert number(ODD).together((1,), (5,)) == [1, 5]
    record = measured.record()
    assert record["backends"] == [["number", MANY], ["number", ODD]]
    assert record["declined"] == [["number", ODD, "even numbers", MANY, 3]]


def test_what_declined_is_counted_beside_what_ran() -> None:
    kernel = number(ODD, SMALL, "reference")
    with meter.metered() as measured:
        assert [kernel(x) for x in (1, 2, 4, 102)] == [1, 2, 4, 102]
    record = measured.record()
    assert record["backends"] == [["number", ODD], ["number", SMALL], ["number", "reference"]]
    assert record["declined"] == [
        ["number", ODD, "even numbers", SMALL, 2],
        ["number", ODD, "even numbers", "reference", 1],
        ["number", SMALL, "102 is too large", "reference", 1],
    ]


def test_reasons_that_differ_every_time_stay_few() -> None:
    with meter.metered() as measured:
        for x in range(101, 1101):
            number(SMALL, "reference")(x)
    declined = measured.record()["declined"]
    assert len(declined) == meter.MOST_REASONS + 1
    assert sum(d[-1] for d in declined) == 1000
    assert ["number", SMALL, meter.OTHER_REASONS, "reference", 1000 - meter.MOST_REASONS] in declined


def test_when_all_decline_every_reason_is_said() -> None:
    with pytest.raises(
        StageError, match=r"no chosen backend of number can do this \(.*odd: even numbers; .*small: 102 is"
    ):
        number(ODD, SMALL)(102)


def test_what_is_chosen_is_known_without_a_call() -> None:
    kernel = number(ODD, SMALL)
    assert kernel.resolve(4) == Choice(SMALL, ((ODD, "even numbers"),))
    assert kernel.resolve(102).backend is None
    assert kernel.choose({}) == Choice(ODD)  # what is not known declines nothing


def test_a_backend_of_another_platform_declines_by_the_table() -> None:
    name = "plugins.numbers.elsewhere"
    assert number(name, "reference").resolve(1) == Choice("reference", ((name, "runs on tpu, not on cpu"),))
    assert number(name, "reference").on("tpu").resolve(1) == Choice(name)
    assert number(name, "reference").resident == 7


def test_a_request_has_shapes_dtypes_schemes_and_options_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Request] = []
    monkeypatch.setattr(backends, "declines", lambda op, name: seen.append)
    x = np.zeros((2, 64), np.float16)
    Kernel("quantize", ("numpy",)).resolve(x, MXFP4, scale_rule="rceil")
    assert (seen[0].op, seen[0].platform) == ("quantize", "cpu")
    assert seen[0].given == {
        "x": TensorSpec((2, 64), "F16"), "scheme": MXFP4, "scale_rule": "rceil", "measure": False, "observed": None,
        "rows": None, "place": None, "importance": None,
    }  # fmt: skip


# The tree is the registry


def test_rooms_and_backends_are_found_in_the_tree() -> None:
    assert {"cast", "matmul", "moe", "number", "quantize", "softmax"} <= {*backends.rooms()}
    assert "codecs" not in backends.rooms()  # holds no definition
    assert backends.backends_of("dequantize") == ["reference", "numpy", "xla", "pallas", "native"]
    assert backends.backends_of("quantize") == [
        "reference",
        "numpy",
        "xla",
        "pallas",
        "native",
    ]  # and no `mxfp4`, `recipe`, `declines`
    assert backends.backends_of("number") == ["reference"]
    assert backends.backends_of("no such room") == backends.backends_of("codecs") == []


def test_every_room_has_a_line_in_every_choice_of_kernels() -> None:
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    ours = {*backends.rooms()} - {"number"}
    assert "native" not in ours  # holds what backends share
    with initialize_config_dir(str(model_runs.CONF), version_base="1.3"):
        for path in (model_runs.CONF / "kernels").glob("*.yaml"):
            choice = compose(f"kernels/{path.stem}")["kernels"]  # some are others with lines changed
            nodes, problems = kernels.nodes(OmegaConf.to_container(choice), ("plugins",))
            assert not problems
            assert {*nodes} == ours, path


def test_backends_are_found_without_importing_them() -> None:
    code = (
        "import sys; from pipeline.ops import Kernel; from pipeline.tensors.spec import TensorSpec as T\n"
        "Kernel('matmul', ('xla', 'reference')).choose({'x': T((1, 64), 'F32'), 'w': T((8, 64), 'F32')})\n"
        "Kernel('quantize', ('xla', 'numpy')).choose({'x': T((1, 64), 'F32')})\n"
        "assert 'jax' not in sys.modules and 'plugins.kernels.matmul.xla' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("op", "names", "said"),
    [
        ("matmull", ["xla"], "there is no op 'matmull'; did you mean 'matmul'"),
        ("matmul", [], "no backend chosen"),
        ("matmul", ["xlaa"], "'xlaa' is unknown; did you mean 'xla'"),
        ("matmul", ["numpy"], "'numpy' is unknown"),  # a backend, but not of this op
        ("number", ["plugins.numbers.none"], "'plugins.numbers.none': there is no such module"),
        ("number", ["plugins.numbers.emty"], "there is no such module; did you mean 'plugins.numbers.empty'"),
        ("number", ["plugins.kernel.matmul.xla"], "no such module; did you mean 'plugins.kernels'"),
        ("number", ["none.at.all"], "'none.at.all': there is no such module"),
    ],
)
def test_what_is_not_there_is_said(op: str, names: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Kernel(op, tuple(names))


def test_a_module_without_the_callable_is_no_backend() -> None:
    with pytest.raises(ConfigError, match="empty holds nothing callable named 'number'"):
        number("plugins.numbers.empty").choose({})


def test_the_table_says_what_compiled_programs_may_use() -> None:
    assert Kernel("matmul", ("xla",)).traced
    assert not Kernel("matmul", ("xla", "reference")).traced
    assert Kernel("quantize", ("xla", "numpy")).resident == backends.BACKENDS["xla"].resident > 0
    assert number(ODD).traced
    assert Backend().traced


# What an engine's results depend on


def test_an_engine_is_what_runs_and_not_how_it_was_asked_for() -> None:
    """With its options as they come out here in place of what was asked for, as in a key."""
    engine = model_runs.engine()

    def key(**options: Any) -> str:
        asked = replace(engine, **options)
        return identity(described(replace(asked, **asked.identity())))

    assert jax.default_backend() == "cpu"
    assert key(device="auto") == key(device="cpu") == key(device="cpu:1")
    assert key(dtype="auto") == key(dtype="f32") != key(dtype="bf16")
    assert key(cache="auto") == key(cache="f32") != key(cache="bf16")
    assert (
        len({key(), key(weights_dtype="bf16"), key(families=(Qwen(),)), key(cast=Kernel("cast", ("reference",)))}) == 4
    )


def test_namesakes_are_told_apart() -> None:
    @dataclass(frozen=True)
    class Qwen:  # another one
        pass

    from plugins.models.qwen import family

    assert repr(Qwen()).rpartition(".")[2] == repr(family.Qwen()).rpartition(".")[2]
    assert described(Qwen()) != described(family.Qwen())
