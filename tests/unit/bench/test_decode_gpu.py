"""gpt-oss-20b on a GPU, as far as it can be told without one: what is counted, and that the whole of it runs, small."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import ConfigError, StageError
from plugins.bench import decode_gpu, logits_apart, of_noise

SMALL = {
    "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 128, "sliding_window": 16,
}  # fmt: skip


def test_a_kernel_is_named_for_an_op_or_for_both_that_have_most_work() -> None:
    found = of_noise.backends(["mosaic_gpu", "moe=pallas"])
    assert {op: name for op, name in found.items() if name != "xla"} == {"attention": "mosaic_gpu", "moe": "pallas"}
    with pytest.raises(ConfigError, match=r"there is no op 'mo'.*moe"):
        of_noise.backends(["mo=xla"])


def test_what_a_step_reads_is_counted() -> None:
    """Of the published shapes, by hand: an expert is 3 × 2880² numbers of 17/32 bytes, and two biases."""
    config = of_noise.config(2)
    built = of_noise.model(config, of_noise.ops(of_noise.backends(["xla"]), jax.devices()[0]))
    chosen = np.array([[[0, 1, 2, 3], [0, 1, 2, 4]], [[0, 1, 2, 3], [3, 2, 1, 0]]])
    found = decode_gpu.read(built, 2, 1024, chosen)
    expert = 3 * 2880**2 * 17 / 32 + 2 * (2 * 2880 + 2880)
    assert found.experts == pytest.approx((5 + 4) * expert)
    assert found.used == 4.5
    assert found.cache == 2 * (128 + 1024) * 8 * 64 * 2 * 2
    attention = 2880 * (64 + 8 + 8) * 64 + 64 * 64 * 2880 + (64 + 8 + 8) * 64 + 2880 + 64
    layer = attention + 2 * 2880 + 32 * 2880 + 32
    assert found.dense == 2 * (2 * layer + 2880 + 201_088 * 2880 + 2 * 2880)


def test_tokens_whose_experts_differ_are_told_apart() -> None:
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8)), jnp.float32)
    experts = jnp.asarray([[[0, 1], [2, 3], [1, 2]]])
    other = experts.at[0, 1, 0].set(0)[:, :, ::-1]  # in another order, which is no difference
    found = logits_apart.apart((logits.at[1, 0].add(0.5).at[2, 0].add(0.125), experts), (logits, other))
    assert (found.other_experts, found.tokens) == (1, 3)
    assert found.largest == pytest.approx(0.5)
    assert found.largest_else == pytest.approx(0.125)


def test_the_whole_of_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, out = of_noise.config, tmp_path / "found.json"
    monkeypatch.setattr(of_noise, "config", lambda layers: real(layers, **SMALL))
    words = "--layers 2 --batch 2 --kernels xla --held 24 --capacity 128 --steps 2 --prefill 0 --compare 1 --out"
    assert decode_gpu.main([*words.split(), str(out)]) == 0
    found = json.loads(out.read_text())
    [row] = found["rows"]
    assert row["tokens"] == pytest.approx(2 / row["seconds"])
    assert 2 <= row["used"] <= 4
    step, prompt = found["logits"]
    assert step["kernels_xla"]["largest"] == prompt["kernels_xla"]["largest"] == 0, "both are XLA's"
    assert 0 < prompt["xla_f32"]["rms_else"] < 0.1 * prompt["xla_f32"]["spread"]
    assert '["moe", "xla"]' in capsys.readouterr().out
    assert decode_gpu.main([*words.replace("128", "24").split(), str(out)]) == ConfigError.exit_code
    assert "tokens come into the cache" in capsys.readouterr().err


def test_all_of_it_is_for_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    assert decode_gpu.main(["--batch", "1"]) == StageError.exit_code
    assert "no GPU here" in capsys.readouterr().err
