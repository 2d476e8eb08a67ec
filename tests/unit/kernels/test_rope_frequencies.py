"""Inverse frequencies from configs, by hand; tests/oracle/test_ops.py has transformers' own."""

from typing import Any

import numpy as np
import pytest

from pipeline.errors import SourceError
from plugins.facts import gemma
from plugins.kernels.rope.frequencies import frequencies

BASE = {"max_position_embeddings": 2048, "hidden_size": 160, "num_attention_heads": 5, "head_dim": 24}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
CASES: dict[str, tuple[float, dict[str, Any]]] = {
    "default": (10000.0, {"rope_type": "default"}),
    "default, large base": (1e6, {"rope_type": "default"}),
    "linear": (10000.0, {"rope_type": "linear", "factor": 3.0}),
    "llama3": (500000.0, LLAMA3 | {"original_max_position_embeddings": 512}),
    "llama3, 3.2's numbers": (500000.0, LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192}),
    "llama3 without a context": (500000.0, LLAMA3),
    "yarn": (150000.0, YARN | {"original_max_position_embeddings": 256}),
    "yarn as gpt-oss": (150000.0, YARN | {"original_max_position_embeddings": 4096, "truncate": False}),
    "yarn with a factor of attention": (
        10000.0,
        YARN | {"attention_factor": 1.25, "original_max_position_embeddings": 64},
    ),
    "yarn with mscale": (
        10000.0,
        YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "original_max_position_embeddings": 64},
    ),
    "yarn, betas that meet": (
        10000.0,
        YARN | {"beta_fast": 1.0, "truncate": False, "original_max_position_embeddings": 64},
    ),
}


def spellings(theta: float, rope: dict[str, Any]) -> dict[str, dict[str, Any]]:
    old = {k: v for k, v in rope.items() if k != "rope_type"} | {"type": rope["rope_type"]}
    return {
        "transformers 5": BASE | {"rope_parameters": rope | {"rope_theta": theta}},
        "transformers 4": BASE | {"rope_theta": theta, "rope_scaling": rope},
        "older": BASE | {"rope_theta": theta, "rope_scaling": old},
        "by layer type": BASE
        | {
            "rope_parameters": {
                "full_attention": rope | {"rope_theta": theta},
                "sliding_attention": {"rope_theta": 5.0},
            }
        },
    }


def test_yarn_by_hand() -> None:
    """gpt-oss's numbers: the first pairs keep their frequency, the last turn 32 times slower."""
    inv_freq, concentration = frequencies(spellings(*CASES["yarn as gpt-oss"])["transformers 4"], 64)
    plain = 150000.0 ** (-np.arange(32) / 32)
    low, high = (64 * np.log(4096 / (r * 2 * np.pi)) / (2 * np.log(150000.0)) for r in (32, 1))
    assert (low, high) == pytest.approx((8.09, 17.4), abs=0.01)
    np.testing.assert_allclose(inv_freq[:9], plain[:9], rtol=1e-6)
    np.testing.assert_allclose(inv_freq[18:], plain[18:] / 32, rtol=1e-6)
    middle = (12 - low) / (high - low)
    np.testing.assert_allclose(inv_freq[12], plain[12] * (middle / 32 + 1 - middle), rtol=1e-6)
    assert concentration == pytest.approx(0.1 * np.log(32) + 1)


def test_gemma_3_in_its_own_old_spelling() -> None:
    config = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    ropes = [gemma.rope(config, kind) for kind in (gemma.SLIDING, gemma.FULL)]
    (sliding, _), (full, _) = (frequencies({"rope_parameters": rope}, 8) for rope in ropes)
    np.testing.assert_allclose(sliding, 1e4 ** (-np.arange(4) / 4), rtol=1e-6)
    np.testing.assert_allclose(full, 1e6 ** (-np.arange(4) / 4) / 8, rtol=1e-6)


def test_a_part_of_a_head() -> None:
    inv_freq, _ = frequencies({"rope_theta": 100.0, "partial_rotary_factor": 0.5}, 12)
    np.testing.assert_allclose(inv_freq, 100.0 ** (-np.arange(3) / 3), rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "layer", "said"),
    [
        ({"rope_scaling": {"rope_type": "yarm"}}, None, ["'yarm'", "did you mean 'yarn'", "llama3"]),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, None, ["'dynamic'", "allowed"]),
        ({"rope_parameters": {"rope_type": "linear"}}, None, ["'linear'", "'factor'"]),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, None, ["original_max_position_embeddings"]),
        ({"rope_parameters": {"full_attention": {}}}, "sliding_attention", ["'sliding_attention'", "full_attention"]),
        ({"rope_parameters": {"full_attention": {}}}, None, ["by kind of layers (full_attention)"]),
        ({"partial_rotary_factor": 0.25}, None, ["3 of 12"]),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, None, ["low_freq_factor", "must differ", "both are 4"]),
    ],
)
def test_errors_name_what_is_wrong(config: dict[str, Any], layer: str | None, said: list[str]) -> None:
    with pytest.raises(SourceError) as caught:
        frequencies(config, 12, layer)
    for words in said:
        assert words in str(caught.value)
