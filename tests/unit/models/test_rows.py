"""Models of rows of numbers: an MLP and a CNN are what their formulas say."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.errors import PlanError
from pipeline.tensors.spec import TensorSpec
from plugins.engine.load import parameters as params_of
from plugins.models.cnn.model import patches
from plugins.models.common.weights import Weights
from plugins.models.family import family_of
from tests.cases import model_runs

MLP = {"model_type": "mlp", "inputs": [3, 5], "hidden_sizes": [7, 11], "outputs": 2, "hidden_act": "relu"}
CNN = {"model_type": "cnn", "inputs": [9, 8, 3], "hidden_sizes": [7, 11, 11], "strides": [2, 1, 1], "outputs": 5}


def filled(config: dict[str, Any], seed: int = 0) -> tuple[Any, dict[str, np.ndarray]]:
    engine = model_runs.engine()
    family = family_of(config, engine.families)
    shapes = {p.name: p.shape for p in family.parameters(config)}
    weights = Weights({n: TensorSpec(s, "F32") for n, s in shapes.items()})
    model = family.build(config, weights, engine.ops, "float32")
    assert not weights.check(config)
    rng = np.random.default_rng(seed)
    values = {n: rng.standard_normal(s).astype(np.float32) * 0.3 for n, s in shapes.items()}
    for param in params_of(model):
        param.set_value(jnp.asarray(values[param.names[0]]))
    return model, values


def test_an_mlp() -> None:
    model, w = filled(MLP)
    inputs = np.random.default_rng(1).standard_normal((4, 3, 5)).astype(np.float32)
    x = inputs.reshape(4, 15)
    for i in range(2):
        x = np.maximum(x @ w[f"layers.{i}.weight"].T + w[f"layers.{i}.bias"], 0)
    np.testing.assert_allclose(model(inputs), x @ w["head.weight"].T + w["head.bias"], rtol=1e-5, atol=1e-5)


def test_a_cnn() -> None:
    """By JAX's own convolution."""
    model, w = filled(CNN)
    inputs = np.random.default_rng(1).standard_normal((4, 9, 8, 3)).astype(np.float32)
    x, into = jnp.asarray(inputs), 3
    for i, (out, stride) in enumerate(zip((7, 11, 11), (2, 1, 1), strict=True)):
        filters = w[f"layers.{i}.conv.weight"].reshape(out, 3, 3, into).transpose(1, 2, 3, 0)
        dims = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(x, filters, (stride, stride), [(1, 1), (1, 1)], dimension_numbers=dims)
        y = y + w[f"layers.{i}.conv.bias"][None, None, None]
        y = y / jnp.sqrt(jnp.square(y).mean(-1, keepdims=True) + 1e-6) * w[f"layers.{i}.norm.weight"][None, None, None]
        y = jax.nn.silu(y)
        x, into = (x + y if x.shape == y.shape else y), out
    assert x.shape == (4, 5, 4, 11)
    expected = np.asarray(x.mean((1, 2))) @ w["head.weight"].T + w["head.bias"]
    np.testing.assert_allclose(model(inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (3, 2), (5, 3)])
def test_patches(kernel: int, stride: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 7, 6, 3)).astype(np.float32)
    found = np.asarray(patches(jnp.asarray(x), kernel, stride))
    side = kernel // 2
    padded = np.pad(x, ((0, 0), (side, side), (side, side), (0, 0)))
    for i in range(found.shape[1]):
        for j in range(found.shape[2]):
            seen = padded[:, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            np.testing.assert_array_equal(found[:, i, j], seen.reshape(2, -1))
    assert found.shape[1:3] == (-(-7 // stride), -(-6 // stride))


BAD = {
    "inputs": (CNN | {"inputs": 64}, "inputs"),
    "no row": (MLP | {"inputs": 0}, "inputs"),
    "no layers": (MLP | {"hidden_sizes": []}, "hidden_sizes"),
    "strides": (CNN | {"strides": [1, 1]}, "strides"),
    "an even filter": (CNN | {"kernel_size": 4}, "kernel_size"),
    "an activation": (MLP | {"hidden_act": "softish"}, "hidden_act"),
    "outputs": ({k: v for k, v in MLP.items() if k != "outputs"}, "outputs"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_config_that_cannot_be(name: str) -> None:
    config, key = BAD[name]
    with pytest.raises(PlanError) as error:
        family_of(config, model_runs.engine().families).parameters(config)
    assert [p.where for p in error.value.problems] == [f"config.json {key}"]
