"""Time on a GPU: what a profile says of it, and that a profile which lacks something is not believed."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pipeline.bench import limits, op_rows
from pipeline.bench.op import Measure, wrongness
from plugins.bench.ops import on_device
from plugins.bench.ops.attention import Attention
from plugins.bench.ops.ours import Ours
from plugins.bench.ops.rows import SoftMax

LIMITS = {"read": 1e10, "multiply_add": 1e11}


def profile(streams: Mapping[str, Sequence[tuple[str, int, int]]], plane: str = "/device:GPU:0") -> Any:
    """One as JAX stores it, of (kernel, start, duration) in µs."""
    names = sorted({name for events in streams.values() for name, _, _ in events})
    lines = []
    for i, (stream, events) in enumerate(streams.items()):
        said = " ".join(
            f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {10**6 * at} duration_ps: {10**6 * took} }}"
            for name, at, took in events
        )
        lines.append(f'lines {{ id: {i} name: "{stream}" {said} }}')
    known = " ".join(
        f'event_metadata {{ key: {i + 1} value {{ id: {i + 1} name: "{name}" }} }}' for i, name in enumerate(names)
    )
    text = f'planes {{ name: "{plane}" {" ".join(lines)} {known} }} planes {{ name: "/host:CPU" }}'
    return jax.profiler.ProfileData.from_text_proto(text)


def test_kernels_of_gpus_are_found_and_nothing_else() -> None:
    streams = {"Stream #7(Compute)": [("gemm", 10, 5)], "XLA Ops": [("dot", 10, 5)]}
    assert on_device.kernels(profile(streams)) == [on_device.Kernel("gemm", 10_000, 15_000)]
    assert on_device.kernels(profile(streams, "/host:GPU")) == []


def test_time_is_that_in_which_something_runs() -> None:
    """What runs on two streams at once is not counted twice; a gap is not counted at all."""
    found = on_device.kernels(profile({
        "Stream #1(Compute)": [("a", 0, 10), ("b", 30, 10), ("a", 50, 10), ("b", 80, 10)],
        "Stream #2(MemcpyD2D)": [("c", 5, 10), ("c", 32, 2)],
    }))  # fmt: skip
    took = on_device.judged(found, 100e-6, 2)
    assert took.how == on_device.KERNELS
    assert took.seconds == pytest.approx((15 + 10 + 10 + 10) / 2 * 1e-6)
    assert took.wall == 100e-6
    assert took.kernels == pytest.approx({"a": 10e-6, "b": 10e-6, "c": 6e-6})


@pytest.mark.parametrize(
    ("events", "why"), [([], "no kernels"), ([("a", 0, 1), ("a", 2, 1), ("a", 4, 1)], "3 of a in 2 calls")]
)
def test_a_profile_that_lacks_something_is_not_believed(
    events: list[tuple[str, int, int]], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    took = on_device.judged(on_device.kernels(profile({"Stream #1": events})), 0.5, 2)
    assert took.seconds == took.wall == 0.5
    assert took.how.startswith(on_device.WALL)
    assert why in took.how
    assert why in capsys.readouterr().err, "said where people look for it"


def test_arguments_are_more_than_a_cache_holds() -> None:
    few = on_device.copies((jnp.zeros((on_device.SETS_NBYTES // 4,), jnp.int8), {"more": None}))
    assert len(few) == 4
    assert len({args[0].unsafe_buffer_pointer() for args in few}) == 4
    assert len(on_device.copies((jnp.zeros(3),))) == on_device.MOST_SETS


def test_calls_of_a_program_read_its_copies_in_turn() -> None:
    seen: list[int] = []
    sets = tuple((i,) for i in range(3))
    program = on_device.Program(lambda i: seen.append(i) or jnp.zeros(()), sets)  # type: ignore[func-returns-value]
    took = program.took(1e-9)
    assert took.calls == on_device.LEAST_CALLS
    assert seen[-took.calls :] == [i % 3 for i in range(took.calls)]


def test_where_there_is_no_gpu_the_hosts_clock_counts() -> None:
    assert not on_device.is_gpu()
    assert not isinstance(on_device.compiled(jnp.sin, jnp.zeros(3)), on_device.Program)
    assert on_device.smi() == {}
    found = Measure({"softmax": SoftMax((2,), 32)}, Ours("xla"), 1e-3)()
    [row] = found["cases"].values()
    assert "timed" not in row
    assert "device" not in found


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Rows of softmax, as if this were a GPU whose kernels take 3 µs."""
    monkeypatch.setattr(on_device, "is_gpu", lambda: True)
    monkeypatch.setattr(on_device, "device", lambda: {"name": "NVIDIA H200", "clocks.sm": "1980 MHz"})
    monkeypatch.setattr(on_device, "kernels", lambda _: [])
    three = on_device.Took(3e-6, on_device.KERNELS, 80e-6, 8)
    monkeypatch.setattr(on_device, "judged", lambda *_: three)
    found = Measure({"softmax": SoftMax((2,), 32)}, Ours("xla"), 1e-3)()
    return op_rows.of_runner("xla", [found], LIMITS, 0.0)


def test_rows_say_how_time_was_taken_and_where(measured: list[dict[str, Any]]) -> None:
    [row] = measured
    assert row["metrics"]["time"]["value"] == pytest.approx(3.0)
    assert row["rates"]["bytes"] == pytest.approx(2 * 2 * 32 * 4 / 3e-6)
    assert row["timed"] == pytest.approx({"how": on_device.KERNELS, "wall": 80.0, "calls": 8})
    assert row["device"]["clocks.sm"] == "1980 MHz"
    [table] = op_rows.tables(measured, [], None)
    assert "NVIDIA H200: kernels, by the profiler" in table.title
    assert table.columns[-1] == op_rows.WALL
    assert table.rows[0][-1] == "80"


def test_limits_of_a_gpu_are_said_with_its_name() -> None:
    found = {**LIMITS, "device": {"clocks.sm": "1980 MHz", "name": "NVIDIA H200"}}
    assert limits.said(found) == "10.0 GB/s, 100 GFLOP/s of NVIDIA H200, clocks.sm 1980 MHz"
    assert limits.said(LIMITS) == "10.0 GB/s, 100 GFLOP/s"


def test_gradients_of_attention_are_held_to_float64() -> None:
    suite = Attention((4, 2, 16), (8,), (24,), 6, more_heads=((2, 1, 32),), backward=True)
    cases = [case for case in suite.cases() if case.gradients]
    assert len(cases) == 2 * 3
    found = Measure({"attention": suite}, Ours("xla"), 1e-3)()["cases"]
    for case in cases:
        row = found[f"attention {case.name}"]
        assert row["wrong"] == ""
        assert row["off"] < 0.5
        call = Ours("xla").call(case)
        assert callable(call)
        right = Ours("xla").given(call())
        for i in range(3):
            assert wrongness(case, tuple(a * (1.1 if i == j else 1) for j, a in enumerate(right)), 0.0)[0]
