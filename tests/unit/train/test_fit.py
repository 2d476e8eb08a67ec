"""Training a module that is none of ours, without a config."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pipeline.errors import ConfigError
from pipeline.training import Splits
from plugins.train.fit import Arrays, Fitted, fit, fit_each
from plugins.train.objectives import Classification
from plugins.train.optimizers import AdamW
from plugins.train.options import Looking, Saving
from plugins.train.schedules import Schedule


class Net(nnx.Module):
    """Two layers, and a count that no gradient is asked for."""

    def __init__(self, dtype: Any = jnp.float32, seed: int = 0):
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(2, 16, rngs=rngs, param_dtype=dtype)
        self.last = nnx.Linear(16, 2, rngs=rngs, param_dtype=dtype)
        self.calls = nnx.Variable(jnp.zeros(()))

    def __call__(self, x: Any) -> Any:
        return self.last(nnx.relu(self.first(x)))


def points(n: int = 200, seed: int = 0) -> dict[str, np.ndarray]:
    """Inside of a circle, or outside."""
    x = np.random.default_rng(seed).uniform(-1, 1, (n, 2)).astype(np.float32)
    return {"inputs": x, "targets": ((x**2).sum(1) < 0.5).astype(np.int32)}


OPTIMIZER = AdamW(rate=3e-2, decay=0.0, schedule=Schedule("constant"))


def trained(net: Net, **changed: Any) -> Fitted:
    return fit(net, points(), Classification(), OPTIMIZER, **{"steps": 60, "batch": 40, **changed})


def right(net: Net) -> float:
    data = points(500, seed=1)
    return float((np.argmax(net(data["inputs"]), axis=1) == data["targets"]).mean())


@pytest.mark.repeats
def test_it_learns_what_it_is_shown() -> None:
    net = Net()
    assert right(net) < 0.8
    found = trained(net)
    assert right(net) > 0.9
    assert (found.step, len(found.losses)) == (60, 60)
    assert found.losses[-1] < 0.5 * found.losses[0]


def test_a_function_of_losses_is_an_objective() -> None:
    def loss(model: Any, batch: Mapping[str, Any]) -> Any:
        logits = jax.nn.log_softmax(model(batch["inputs"]))
        return -jnp.take_along_axis(logits, batch["targets"][:, None], axis=1)[:, 0]

    a, b = Net(), Net()
    by_node = trained(a, steps=5)
    by_function = fit(b, points(), loss, OPTIMIZER, steps=5, batch=40)
    np.testing.assert_allclose(by_node.losses, by_function.losses, rtol=1e-5)
    np.testing.assert_allclose(a.first.kernel[...], b.first.kernel[...], rtol=1e-4)


def test_parameters_keep_their_dtype_and_other_variables_their_value() -> None:
    net = Net(jnp.bfloat16)
    before = net.first.kernel[...]
    trained(net, steps=3)
    assert net.first.kernel[...].dtype == jnp.bfloat16
    assert not np.array_equal(before, net.first.kernel[...])
    assert net.calls[...] == 0


def test_a_call_goes_on_where_an_earlier_one_was_ended(tmp_path: Path) -> None:
    class Dies(Arrays):
        def batch(self, at: np.ndarray) -> dict[str, np.ndarray]:
            nonlocal left
            left -= 1
            if not left:
                raise KeyboardInterrupt
            return super().batch(at)

    left, whole, ended = 7, Net(), Net()
    trained(whole, steps=10)
    again = {"steps": 10, "batch": 40, "folder": tmp_path, "save": Saving(every=2)}
    with pytest.raises(KeyboardInterrupt):
        fit(ended, Dies(points()), Classification(), OPTIMIZER, **again)  # type: ignore[arg-type]
    found = fit(ended, points(), Classification(), OPTIMIZER, **again)  # type: ignore[arg-type]
    np.testing.assert_array_equal(whole.first.kernel[...], ended.first.kernel[...])
    assert len(found.losses) == 10


def test_what_is_held_out_is_looked_at() -> None:
    data = Splits(Arrays(points()), Arrays(points(50, seed=2)))
    found = fit(Net(), data, Classification(), OPTIMIZER, steps=4, batch=40, look=Looking(every=2))
    assert [*found.held_out] == [0, 2, 4]


def test_arrays_that_do_not_fit_are_said() -> None:
    with pytest.raises(ConfigError, match="of one length"):
        fit(Net(), {"inputs": np.zeros((3, 2)), "targets": np.zeros(2)}, Classification(), steps=1)
    with pytest.raises(ConfigError, match="micro=3 does not divide"):
        trained(Net(), micro=3)


def test_several_at_once_become_what_each_would_alone() -> None:
    """Divided over devices; and who looks at one of them sees what `fit` says."""
    seeds, rates, splits = (0, 1), (3e-2, 1e-2), Splits(Arrays(points()), Arrays(points(60, seed=2)))
    several, how = [Net(seed=seed) for seed in seeds], {"steps": 20, "batch": 40}
    found = fit_each(
        several, splits, Classification(), OPTIMIZER, rates=rates, seeds=seeds, devices=jax.devices()[:2], **how
    )
    for net, seed, rate, fitted in zip(several, seeds, rates, found, strict=True):
        alone = Net(seed=seed)
        one = fit(alone, splits, Classification(), replace(OPTIMIZER, rate=rate), seed=seed, **how)
        assert fitted.losses == pytest.approx(one.losses, rel=1e-4)
        assert fitted.held_out == pytest.approx(one.held_out, rel=1e-4)
        np.testing.assert_allclose(net.last.kernel[...], alone.last.kernel[...], atol=1e-4)
    with pytest.raises(ConfigError, match="2 models over 4 devices: parts have to be equal"):
        fit_each(several, splits, Classification(), rates=rates, devices=jax.devices()[:4], **how)
    with pytest.raises(ConfigError, match="2 models, 1 rates, 2 seeds: equally many are needed"):
        fit_each(several, splits, Classification(), rates=[0.1], **how)
