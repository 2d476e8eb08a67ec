"""What a training takes by its parameters alone is what its programs have."""

from collections.abc import Iterator
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from plugins.models.family import family_of
from plugins.train.footprint import products
from tests.cases import model_runs
from tests.unit.models.test_rows import CNN, MLP, filled

ROWS = 3


def equations(jaxpr: Any) -> Iterator[JaxprEqn]:
    """Of branches, of which each platform has one, the first."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            inner = value[0] if isinstance(value, tuple) and value else value
            if isinstance(inner, ClosedJaxpr | Jaxpr):
                yield from equations(inner.jaxpr if isinstance(inner, ClosedJaxpr) else inner)


def multiplied(program: Any, *given: Any) -> int:
    """Numbers that a program multiplies in its products, each time."""
    found = 0
    for equation in equations(jax.make_jaxpr(program)(*given).jaxpr):
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval
            found += prod(equation.outvars[0].aval.shape) * prod(left.shape[d] for d in summed)  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("config", [MLP, CNN], ids=["mlp", "cnn"])
def test_products_are_those_of_the_program(config: dict[str, Any]) -> None:
    """A filter's are as many as there are places."""
    model, _ = filled(config)
    parameters = family_of(config, model_runs.engine().families).parameters(config)
    shape = config["inputs"]
    assert multiplied(model, jnp.zeros((ROWS, *shape))) == ROWS * products(parameters, config)
