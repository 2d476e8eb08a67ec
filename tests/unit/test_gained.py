"""What steps of quantizing gain, by its definition, whatever happened to a tensor before and however it is read."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import meter
from pipeline.api import quant_method
from pipeline.calibration import LinearStatistics
from pipeline.records.gains import ends, gain_of, mean_shares, steps_of, worst_first
from pipeline.reporting.manifest import plain
from pipeline.rules import Rule
from pipeline.stage import Checkpoint, Context
from pipeline.tensors.stats import Gain
from plugins.quant.awq import Awq
from plugins.quant.gptq import Gptq
from plugins.quant.hadamard import Hadamard
from plugins.quant.imatrix import Imatrix
from stages.quantize import Quantize
from stages.rotate import Rotate
from tests.sharding import models
from tests.unit.quant.test_calibrated import GRID
from tests.unit.stages.test_smooth import INT4, Seen, made, seen, smooth

Q, DOWN = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"
RULES = (Rule("quant", "*_proj.weight"),)


def gains(checkpoint: Checkpoint, name: str, *boxes: tuple[slice, ...]) -> Gain:
    """Of a tensor that is read in these parts."""
    with meter.metered() as found:
        for box in boxes or ((),):
            checkpoint.store.read(name, box)
    record = found.record()["gains"]
    assert [*record] == [name]
    return Gain(*record[name])


def quantized(checkpoint: Checkpoint, calibrate: Any, **more: Any) -> Checkpoint:
    stage = Quantize(INT4, RULES, calibrate=calibrate, **more)
    return stage.run(Context(Path()), checkpoint)


def lost(checkpoint: Checkpoint, name: str) -> tuple[float, float]:
    """Σ‖(Q-W)x‖² of a matrix that is rounded to the nearest, and Σ‖Wx‖², over the inputs that it has here."""
    w = checkpoint.store.read(name).astype(np.float64)
    x = checkpoint.statistics.x(w.shape[-1])  # type: ignore[union-attr]
    off = INT4.decode(INT4.encode(w.astype(np.float32)), "F32") - w
    return float(np.square(off @ x.T).sum()), float(np.square(w @ x.T).sum())


def test_of_gptq_by_products_of_inputs() -> None:
    plain_one = seen("llama")
    found = gains(quantized(plain_one, Gptq()), Q)
    first, signal = lost(plain_one, Q)
    assert found.by == "products"
    assert [*found.lost] == ["nearest", "gptq"]
    assert found.lost["nearest"] == pytest.approx(first, rel=1e-3)
    assert found.signal == pytest.approx(signal, rel=1e-3)
    assert found.lost["gptq"] < 0.9 * first


def test_of_imatrix_by_mean_squares_in_whatever_parts() -> None:
    of = quantized(seen("llama"), Imatrix(GRID))
    whole = gains(of, Q)
    rows, n = of.store.specs[Q].shape
    half = slice(0, rows // 2), slice(rows // 2, rows)
    parts = gains(of, Q, *((r, c) for r in half for c in (slice(0, 32), slice(32, n))))
    assert whole.by == parts.by == "squares"
    assert parts.signal == pytest.approx(whole.signal, rel=1e-6)
    assert parts.lost == pytest.approx(dict(whole.lost), rel=1e-6)
    assert whole.lost["imatrix"] < whole.lost["nearest"]


def test_experts_count_by_their_tokens() -> None:
    of = seen("gpt_oss")
    name = "model.layers.0.mlp.experts.down_proj"
    experts = of.store.specs[name].shape[0]

    class Uneven(Seen):
        def of(self, name: str) -> LinearStatistics | None:
            found = super().of(name)
            assert found is not None
            return replace(found, tokens=np.arange(experts)) if np.ndim(found.tokens) else found

    of = replace(of, statistics=Uneven(of.statistics.names))  # type: ignore[union-attr]
    coded = Quantize(INT4, (Rule("quant", "*.experts.*_proj"),), calibrate=Gptq()).run(Context(Path()), of)
    whole = gains(coded, name)
    each = [gains(coded, name, (slice(e, e + 1),)) for e in range(experts)]
    assert each[0] == Gain("products", 0.0, {"nearest": 0.0, "gptq": 0.0})
    assert sum(g.signal for g in each) == pytest.approx(whole.signal, rel=1e-6)
    assert each[2].signal > each[1].signal > 0


def test_of_scaled_channels_against_the_weights_as_they_were(tmp_path: Path) -> None:
    plain_one = seen("llama")
    scaled = made(smooth(), plain_one, tmp_path)
    found = gains(quantized(scaled, Gptq(), smooth=Awq(grid=4)), Q)
    first, signal = lost(plain_one, Q)
    assert [*found.lost] == ["nearest", "awq", "gptq"]
    assert found.signal == pytest.approx(signal, rel=1e-3)
    assert found.lost["nearest"] == pytest.approx(first, rel=1e-3)
    assert found.lost["gptq"] < found.lost["awq"] < found.lost["nearest"]


def test_of_rotated_states_against_the_weights_as_they_were() -> None:
    plain_one, rotation = seen("llama"), Hadamard()
    rotated = Rotate(rotation, models.engine().families).run(Context(Path()), plain_one)
    norm = plain_one.store.read("model.layers.0.input_layernorm.weight").astype(np.float32)

    class Turned(Seen):
        def x(self, n: int, *expert: int) -> Any:
            return rotation.apply(super().x(n, *expert) / norm)

    rotated = replace(rotated, statistics=Turned(plain_one.statistics.names))  # type: ignore[union-attr]
    found = gains(quantized(rotated, Gptq(), rotate=rotation), Q)
    first, signal = lost(plain_one, Q)
    assert [*found.lost] == ["nearest", "rotate", "gptq"]
    assert found.signal == pytest.approx(signal, rel=1e-3)
    assert found.lost["nearest"] == pytest.approx(first, rel=1e-3)
    assert found.lost["gptq"] < found.lost["rotate"]


def test_of_rotated_states_by_weights_alone() -> None:
    rotation = Hadamard()
    rotated = Rotate(rotation, models.engine().families).run(Context(Path()), replace(seen("llama"), statistics=None))
    found = gains(quantized(rotated, None, rotate=rotation), DOWN)
    w = rotated.store.read(DOWN)
    assert found.by == "weights"
    assert [*found.lost] == ["nearest", "rotate"]
    assert found.lost["rotate"] == pytest.approx(np.square(INT4.decode(INT4.encode(w), "F32") - w).sum(), rel=1e-5)


def test_what_has_no_steps_or_is_not_measured_says_nothing() -> None:
    of = seen("llama")
    for coded in (
        quantized(of, None),
        quantized(of, Gptq(), measure=False),
        Quantize(quant_method("int4"), RULES).run(Context(Path()), of),
    ):
        with meter.metered() as found:
            coded.store.read(Q)
        assert found.gains == {}


def test_what_it_would_be_without_is_there_for_whoever_compares() -> None:
    of = seen("llama")
    found = quantized(of, Gptq())
    assert found.nearest is not None
    assert found.nearest.read(Q).codes.tobytes() == INT4.encode(of.store.read(Q)).codes.tobytes()
    assert quantized(of, None).nearest is None


def test_a_manifest_is_read_again() -> None:
    rows = [
        {"name": "a", **plain(Gain("products", 100.0, {"nearest": 4.0, "awq": 3.0, "gptq": 1.0}))},
        {"name": "b", **plain(Gain("squares", 10.0, {"nearest": 1.0, "gptq": 0.5}))},
        {"name": "c", **plain(Gain("squares", 0.0, {"nearest": 0.0, "gptq": 0.0}))},
    ]
    assert steps_of(rows) == ["nearest", "awq", "gptq"]
    assert [row["name"] for row, _ in worst_first(rows)] == ["b", "a", "c"]
    assert ends(gain_of(rows[0])) == (0.04, 0.01)
    assert mean_shares(rows) == pytest.approx({"nearest": 0.14 / 3, "awq": 0.13 / 3, "gptq": 0.06 / 3})
    assert gain_of({"by": "squares", "signal": "inf", "lost": {"nearest": "nan"}}).signal == float("inf")
