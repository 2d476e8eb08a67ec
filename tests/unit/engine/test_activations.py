"""Activations rounded before packed weights: each row by itself, as the definition rounds it, and before no others."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pipeline
from pipeline.errors import WeightmillError
from pipeline.hooks import optional
from pipeline.method import MethodHooks
from pipeline.ops import Kernel
from pipeline.tensors.scheme import MXFP4
from pipeline.testing.memory import quantized
from plugins.kernels.quantize_dequantize.reference import quantize_dequantize
from plugins.models.common.rounding import MatMul, MoE, Rounder
from tests.cases.quantized import quant_method

XLA = Kernel("quantize_dequantize", ("xla",))


def compiled(x: Any, scheme: Any, **how: Any) -> Any:
    """In one program: op by op each takes as long to compile."""
    return jax.jit(partial(XLA, scheme=scheme, **how))(x)


def rounder(name: str) -> Rounder:
    method = quant_method(name)
    return Rounder(compiled, method.scheme, optional(method, MethodHooks, "recipe"))  # type: ignore[arg-type]


X = (np.random.default_rng(0).standard_normal((3, 5, 64)) * np.geomspace(0.01, 100, 5)[:, None]).astype(np.float32)


@pytest.mark.parametrize("name", ["int8", "fp8_e4m3", "fp8_e5m2", "mxfp4", "mxfp8_e4m3", "nvfp4"])
@pytest.mark.brief("int8", "mxfp4")
def test_each_row_is_rounded_by_itself(name: str, thorough: bool) -> None:
    """Scales of a matrix are of a row here: what else is in a batch changes nothing. In `make test`, of every size a
    row."""
    method = quant_method(name)
    found = np.asarray(rounder(name)(X))
    assert found.dtype == np.float32
    for place in [*np.ndindex(3, 5)][:: 1 if thorough else 3]:
        alone = quantize_dequantize(X[place][None], method.scheme, **asdict(rounder(name).recipe))[0]
        np.testing.assert_array_equal(found[place], alone)
    assert (found != X).mean() > 0.5


def test_no_row_is_rounded_before_plain_weights() -> None:
    seen: list[Any] = []

    class Seen:
        def __call__(self, x: Any, w: Any, *rest: Any, **options: Any) -> None:
            seen.append(x)

        def together(self, *calls: tuple[Any, ...]) -> list[Any]:
            seen.extend(x for x, *_ in calls)
            return []

    by = rounder("int8")
    matmul, packed, plain = MatMul(Seen(), by), quantized(MXFP4, (8, 64)), np.zeros((8, 64), np.float32)
    x = jnp.asarray(X)
    matmul(x, plain)
    matmul(x, packed)
    matmul.together((x, packed), (x, plain), (x, packed, None))
    assert [bool((y == x).all()) for y in seen] == [True, False, False, True, False]
    assert seen[2] is seen[4], "rounded once"
    np.testing.assert_array_equal(seen[1], by(x))


def test_experts_round_what_they_are_given_and_what_they_hand_on() -> None:
    by, kernel = rounder("int8"), Kernel("moe", ("xla",))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    chosen, weights = np.array([[0, 2], [1, 0], [2, 1]], np.int32), rng.random((3, 2)).astype(np.float32)
    w_in, w_out = quantized(MXFP4, (3, 32, 64), seed=2), quantized(MXFP4, (3, 64, 32), seed=3)

    def activation(h: Any) -> Any:
        return jnp.maximum(h, 0)

    rest = (chosen, weights, (w_in,), (None,), w_out, None)

    def of(call: Any, activation: Any) -> Any:
        return np.asarray(jax.jit(lambda x: call(x, *rest, activation=activation))(x))

    found = of(MoE(kernel, by), activation)
    wanted = of(lambda x, *rest, **how: kernel(by(x), *rest, **how), lambda h: by(activation(h)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * np.abs(found).max())
    assert np.abs(found - of(kernel, activation)).max() > 1e-3 * np.abs(found).max()


CALIBRATED = ("activations_scales=calibrated", "calibrate=absmax")
CUT = (
    "mesh=tensor",
    "mesh.axes.tensor=28",
    "mesh.rules={heads: null, kv_heads: null, vocab: null}",
    "mesh.replicated_most=1",
)
TYPED = ("+model=gpt_oss", "quant=int8", "flow=generate", "prompt=a")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("activations=int9",), "activations: there is no quant option 'int9'; did you mean 'int8'"),
        (("activations=[int8]",), "activations: .*: the name of a quant option is expected"),
        (("activations=int4",), r"before model\.layers.* and 3 more: last dimension 160 is not a multiple"),
        (("activations=auto",), "activations: "),
        (("activations=q4_k",), "activations: "),
        (("activations=int8", "mesh=tensor", "mesh.axes.tensor=2"), "over tensor, .* of a row; mesh.stored"),
        (("activations=nvfp4", *CALIBRATED, *CUT), "over tensor, 8 on each device, and scales are of blocks of 16"),
        (("activations_rotate=16", *CUT), "over tensor, 8 on each device, and blocks of 16 are rotated together; mesh"),
        (("activations=nvfp4", "flow=convert", "export=compressed_tensors"), "activations: .*input_global_scale"),
        (CALIBRATED, "calibrated ones are of what activations are rounded to"),
        (("activations=int8", "activations_scales=calibrate"), "activations_scales: .*did you mean 'calibrated'"),
        (("activations=int8", *CALIBRATED, "calibrate.quantile=0.99"), r"keeps none; calibrate\.samples=256"),
        (("activations=int8", *CALIBRATED[1:], "calibrate.quantile=0.99"), "0.99 is of what activations_scales="),
        (("activations=int8", *CALIBRATED, "calibrate.quantile=2", "calibrate.samples=9"), "2.0 is no share between"),
        (("activations=int8", CALIBRATED[0]), "but nothing was: .*calibrate=absmax does"),
        (("activations_rotate=33",), "activations_rotate: 33 is no power of two"),
        (("activations_rotate=64",), "activations_rotate: .*blocks of 64 do not divide 160 channels"),
        (("activations=int8", *CALIBRATED, "activations_rotate=32"), "scales are of inputs that are not rotated"),
        (("activations_rotate=32", "flow=sensitivity"), "activations_rotate: sensitivity looks at tensors one by one"),
        (("activations_rotate=32", "flow=convert"), "no file says that inputs are to be rotated"),
        (("activations=mxint8", "flow=convert", "export=compressed_tensors"), "activations are int8, fp8_e4m3"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_before_anything_runs(more: tuple[str, ...], said: str, tmp_path: Path) -> None:
    with pytest.raises(WeightmillError, match=said):
        pipeline.run([*TYPED, *more, f"paths.outputs={tmp_path}"], progress=False)
    assert not [*tmp_path.iterdir()]
