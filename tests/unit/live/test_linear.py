"""QuantizedLinear: what its weights stand for, under jit, grad and vmap, in any scheme."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from pipeline.errors import PlanError
from pipeline.tensors.qtensor import QTensor
from pipeline.testing.memory import quantized
from plugins.kernels.cases import SCHEMES
from plugins.live.linear import QuantizedLinear
from plugins.live.trees import dequantize, quantize


def on_device(q: QTensor) -> QTensor:
    return QTensor(scheme=q.scheme, **{name: jnp.asarray(a) for name, a in q.components.items()})


@pytest.mark.parametrize("name", ["mxfp4", "nf4 twice", "int3", "fp8 in tiles"])
@pytest.mark.brief(2)
def test_it_is_the_product_with_what_its_weights_stand_for(name: str) -> None:
    """And so are gradients with respect to x and to the bias."""
    q = on_device(quantized(SCHEMES[name], (6, 128)))
    x, bias = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate([(2, 3, 128), (6,)]))
    layer = QuantizedLinear(q, bias)
    w = dequantize(q, jnp.float32)

    def expected(bias: Any, x: Any) -> Any:
        return jnp.square(jnp.einsum("abi,oi->abo", x, w, precision="highest") + bias.reshape(1, 1, -1)).sum()

    @nnx.jit
    def found(layer: QuantizedLinear, x: Any) -> Any:
        return nnx.value_and_grad(lambda layer, x: jnp.square(layer(x)).sum(), argnums=(0, 1))(layer, x)

    y, (of_layer, of_x) = found(layer, x)
    value, (of_bias, to_x) = jax.value_and_grad(expected, argnums=(0, 1))(bias, x)
    np.testing.assert_allclose(y, value, rtol=1e-5)
    for gradient, reference in ((of_x, to_x), (of_layer.bias.get_value(), of_bias)):
        most = np.abs(reference).max()
        np.testing.assert_allclose(gradient / most, reference / most, atol=1e-5)
        assert most > 1
    np.testing.assert_allclose(jax.vmap(layer)(x), layer(x), rtol=1e-4, atol=1e-4 * np.abs(layer(x)).max())


def test_layers_of_a_population_are_mapped_over() -> None:
    @nnx.vmap(in_axes=0)
    def made(key: Any) -> nnx.Linear:
        return nnx.Linear(64, 5, rngs=nnx.Rngs(key))

    kernels = made(jax.random.split(jax.random.key(0), 3)).kernel.get_value()
    q = quantize(jnp.swapaxes(kernels, 1, 2), "int8")
    x = jax.random.normal(jax.random.key(1), (3, 2, 64))
    found = jax.vmap(lambda q, x: QuantizedLinear(q)(x))(q, x)
    np.testing.assert_allclose(found, jnp.einsum("eni,eio->eno", x, kernels), rtol=0.05, atol=0.05)


def test_from_linear_and_back() -> None:
    linear = nnx.Linear(64, 7, rngs=nnx.Rngs(0))
    layer = QuantizedLinear.from_linear(linear, "nf4")
    assert (layer.in_features, layer.out_features, layer.bias) == (64, 7, linear.bias)
    back = layer.to_linear()
    x = jax.random.normal(jax.random.key(0), (3, 64))
    np.testing.assert_allclose(back(x), layer(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(linear(x), layer(x), atol=0.4)
    assert not np.allclose(linear(x), layer(x), atol=1e-3)


def test_from_linear_refuses_what_does_not_fit() -> None:
    with pytest.raises(PlanError, match="not a multiple of the block of 64"):
        QuantizedLinear.from_linear(nnx.Linear(48, 7, rngs=nnx.Rngs(0)), "nf4")
    with pytest.raises(PlanError, match="packs nothing"):
        QuantizedLinear.from_linear(nnx.Linear(48, 7, rngs=nnx.Rngs(0)), "none")
    with pytest.raises(TypeError, match="from_linear"):
        QuantizedLinear(jnp.zeros((3, 4)))  # type: ignore[arg-type]


def test_what_is_around_it_trains() -> None:
    """An optimizer of all `nnx.Param` leaves packed weights alone."""

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.down = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
            self.up = QuantizedLinear.from_linear(nnx.Linear(64, 3, rngs=nnx.Rngs(1)), "mxfp4")

        def __call__(self, x: Any) -> Any:
            return self.up(jnp.tanh(self.down(x)))

    net = Net()
    before = np.asarray(net.up.weight.get_value().codes)
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(0), (16, 64))

    @nnx.jit
    def step(net: Net, optimizer: nnx.Optimizer[Net]) -> Any:
        loss, gradients = nnx.value_and_grad(lambda net: jnp.square(net(x) - 1).mean())(net)
        optimizer.update(net, gradients)
        return loss

    losses = [float(step(net, optimizer)) for _ in range(30)]
    assert losses[-1] < losses[0] / 5
    np.testing.assert_array_equal(net.up.weight.get_value().codes, before)
