"""Numbers and names that no run could make sense of are refused when the config is read, by the name that was typed."""

import math
from typing import Any

import pytest

import pipeline
from pipeline.errors import WeightmillError

TRAIN = ("flow=finetune", "data.files=[README.md]")
TRAINED = ("flow=convert", "quant=int4", "calibrate=reconstruct")
HUGE, NAN, INF = str(2**70), "nan", "inf"

REFUSED: list[tuple[tuple[str, ...], str, list[Any]]] = [
    (("flow=bench_ops",), "bench.most", [-1, 0, 1e300, HUGE, NAN, INF, "much"]),
    (("flow=bench_ops",), "bench.seconds", [-1, 0, 1e300, HUGE, NAN, INF, "long"]),
    (("flow=bench_parts",), "bench.seconds", [-1, 0, 1e300]),
    (("flow=bench_scale",), "bench.seconds", [-1, 0, 1e300]),
    (("flow=bench_scale",), "scales.convert.overrides", ["[1,2]", "[quant]"]),
    (("flow=bench",), "engines.jax.kernels", ["nonsense", 3]),
    (("flow=bench",), "engines.jax.export", ["nonsense"]),
    (("flow=convert",), "dask.chunk", [5, "5B", 0, "-1KiB", NAN]),
    (("flow=generate",), "engine.kernels", ["nonsense"]),
    (("flow=generate",), "engine.programs", ["-1", "''"]),
    ((*TRAIN, "train.look.every=9"), "train.look.patience", [-1, 0, HUGE]),
    (TRAIN, "train.look.patience", [3]),
    (TRAIN, "train.look.examples", [-1, 0, 10**12]),
    (TRAIN, "train.look.every", [-1, 10**12, HUGE, NAN, "often"]),
    (TRAIN, "train.look.tokens", [-1, 0, 10**12]),
    (TRAIN, "train.look.temperature", [-1, 1e300, NAN, INF]),
    (TRAIN, "train.save.every", [-1, 10**12]),
    (TRAIN, "train.save.keep", [-1, 0, 10**12]),
    (TRAIN, "train.save.seconds", [-1, 0, 1e300, NAN, INF]),
    (TRAIN, "train.optimizer.eps", [-1, 0, 1e-300, 1e300, NAN, INF]),
    ((*TRAIN, "train/optimizer=muon"), "train.optimizer.eps", [0]),
    (TRAINED, "calibrate.reconstruct.scale_rate", [-1, 1e30, NAN, INF, "fast"]),
    (TRAINED, "calibrate.reconstruct.round_rate", [-1, 1e30, HUGE]),
    (TRAINED, "calibrate.reconstruct.updates", [-1, 0, 10**12]),
]


@pytest.mark.parametrize(("flow", "key", "given"), [(f, k, v) for f, k, values in REFUSED for v in values])
def test_refused(flow: tuple[str, ...], key: str, given: Any) -> None:
    with pytest.raises(WeightmillError) as why:
        pipeline.plan(["+model=gpt_oss", *flow, f"{key}={given}"])
    group, _, name = key.rpartition(".")
    assert group in str(why.value), "where it was typed"
    assert name in str(why.value)
    assert not math.isclose(why.value.exit_code, 1), "1 is a bug"


@pytest.mark.parametrize("setting", [
    (*TRAIN, "train.look.every=5", "train.look.patience=1"), (*TRAIN, "train.save.seconds=null"),
    (*TRAIN, "train.optimizer.eps=1.0e-10"), (*TRAIN, "train.optimizer.eps=1"),
    (*TRAINED, "calibrate.reconstruct.scale_rate=0"),
    (*TRAINED, "calibrate.reconstruct.round_rate=1"), ("flow=bench_ops", "bench.most=null"),
    ("flow=bench", "engines.jax.kernels=xla"),
    ("flow=bench_scale", 'scales.convert.overrides=["quant=int4", "~rules_file"]'),
    ("flow=generate", "engine.programs=programs"),
])  # fmt: skip
def test_allowed(setting: tuple[str, ...]) -> None:
    pipeline.plan(["+model=gpt_oss", *setting])


@pytest.mark.parametrize("resume", ["/missing/folder", "''", "docs"])
def test_a_training_that_is_not_there_is_not_gone_on_from(resume: str) -> None:
    found = pipeline.plan(["+model=gpt_oss", *TRAIN, f"train.resume={resume}"]).problems
    assert [p.where for p in found] == ["train.resume"]


def test_what_was_typed_of_quant_auto_is_named() -> None:
    """Its first run says `allocate.bits`."""
    for wrong in ("quant.bits=0.5", "quant.bits=-1", "quant.bits=nan", "quant.quants=[int99]"):
        more = [] if "bits" in wrong else ["quant.bits=4"]
        with pytest.raises(WeightmillError, match=rf"quant\.{wrong[6:10]}") as why:
            pipeline.run(["+model=gpt_oss", "quant=auto", "flow=convert", wrong, *more])
        assert "allocate." not in str(why.value)
