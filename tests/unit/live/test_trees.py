"""Trees of JAX arrays become packed ones: the pipeline's own codes, on the same devices, divided as before."""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.errors import PlanError, ValueRangeError
from pipeline.method import Method
from pipeline.tensors.qtensor import QTensor
from pipeline.tensors.spec import numpy_dtype
from plugins.formats.orbax.tree import abstract, describe
from plugins.live import devices
from plugins.live import rules as live_rules
from plugins.live.trees import dequantize, quantize
from plugins.quant.blockwise import Blockwise
from tests.cases.model_runs import QUANTIZING, quick_compilation
from tests.cases.quantized import quant_method

ON_HOST = ("nf4 twice", "at random", "searched")
OPTIONS = QUANTIZING
DOUBLE = Blockwise("nf4", 64, "dynamic8", second="dynamic8", scale_rule="amax", ties="down", codes_from="unrounded")
MORE: dict[str, Method] = {
    "nf4 twice": DOUBLE,
    "int8 a row": Blockwise("int8", 0, "f32", scale_rule="amax"),
    "int8 a matrix": Blockwise("int8", 0, "f32", block_rows=0, scale_rule="amax"),
    "fp8 in tiles": Blockwise("e4m3", 64, "f32", block_rows=3, scale_rule="amax"),
    "at random": Blockwise("e2m1", 32, "e8m0", stochastic=True, seed=7),
    "searched": Blockwise("e2m1", 32, "e8m0", search="mse"),
    "int4 packed by three": Blockwise("int3", 32, "bf16", scale_rule="half_range"),
    "poisoned": Blockwise("e4m3", 64, "f32", scale_rule="amax", nonfinite="poison"),
}


@pytest.fixture(autouse=True)
def _composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config takes longer to compose than most trees to quantize."""
    monkeypatch.setattr(live_rules, "quant_method", quant_method)


@cache
def method(name: str) -> Method:
    return MORE[name] if name in MORE else quant_method(name)


def lying(x: Any, *spec: Any, **axes: int) -> Any:
    """`x` divided over as many of the devices as `axes` say."""
    count = int(np.prod(list(axes.values())))
    mesh = Mesh(np.array(jax.devices()[:count]).reshape(tuple(axes.values())), tuple(axes))
    return jax.device_put(x, NamedSharding(mesh, P(*spec)))


def values(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * np.geomspace(1e-3, 10, shape[-1])).astype(dtype)


def same(found: QTensor, expected: QTensor) -> None:
    assert found.scheme == expected.scheme
    assert found.components.keys() == expected.components.keys()
    for name, array in expected.components.items():
        mine = np.asarray(found.components[name])
        assert mine.dtype == array.dtype, name
        assert mine.tobytes() == np.asarray(array).tobytes(), name


@pytest.fixture
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would have a value pass through the host fails."""

    def refused(*_: Any) -> Any:
        raise AssertionError("read by the host")

    monkeypatch.setattr(devices, "_on_host", refused)


ON_DEVICE = [n for n in (*OPTIONS, *MORE) if n not in ON_HOST]
# What is narrow is widened before anything else is done with it: one of every kind of scale. Of bfloat16
# test_quantize_dequantize.py has the bits of every format.
NARROW = ("mxfp4", "nvfp4", "nf4", "q4_1", "int8 a row", "fp8 in tiles")
CODED = [*((n, "F32") for n in ON_DEVICE), *((n, dtype) for n in NARROW for dtype in ("BF16", "F16"))]


@pytest.mark.parametrize(("name", "dtype"), CODED)
@pytest.mark.usefixtures("no_host")
@pytest.mark.brief(
    "nvfp4-BF16", "q4_1-F32", "mxfp4-F16", "int3-F32", "nf4-BF16", "int8 a row-F16", "fp8 in tiles-F32", "poisoned-F32"
)
def test_codes_are_those_of_the_pipeline_and_come_back(name: str, dtype: str, thorough: bool) -> None:
    x = values(3, 6, 128, dtype=numpy_dtype(dtype))
    x[1, 2, 3:70], x[1, 3] = 0, x[1, 3] * x.dtype.type(2.0**-12)
    if name == "poisoned":
        x[0, 1, 7], x[2, 5, 127] = np.nan, -np.inf
    how = method(name)
    expected = how.encode(x)
    # Programs differ between dtypes by how they begin and end: optimized ones are those of float32, in `make test` of
    # one that has everything; of the others test_number_formats_xla.py has them.
    with quick_compilation(dtype != "F32" or not (thorough or name == "q4_1")):
        tree = quantize({"a": {"b": jnp.asarray(x)}, "norm": jnp.ones(4)}, how)
        same(tree["a"]["b"], expected)
        if dtype == "F16":
            return
        back = dequantize(tree, jnp.dtype(numpy_dtype(dtype)))
    np.testing.assert_array_equal(*(np.asarray(v, np.float32) for v in (back["a"]["b"], how.decode(expected, dtype))))
    assert back["norm"] is tree["norm"]


@pytest.mark.parametrize("name", ON_HOST)
def test_codes_that_no_device_makes_are_the_host_s_where_that_is_asked_for(name: str) -> None:
    x, how = values(3, 6, 128), method(name)
    with pytest.raises(PlanError, match=r"a: cannot be packed on its devices \(xla: .*on_host=True"):
        quantize({"a": jnp.asarray(x)}, how)
    found = quantize({"a": jnp.asarray(x)}, how, on_host=True)["a"]
    same(found, how.encode(x, **({"place": ("a", x.shape, (0, 0, 0))} if name == "at random" else {})))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8 a row", "int8 a matrix", "fp8 in tiles", "at random", "q4_1"])
@pytest.mark.brief("mxfp4", "int8 a row", "int8 a matrix", "fp8 in tiles", "at random")
def test_each_device_keeps_its_part(name: str) -> None:
    """Also where a scale is of all rows, or of a whole one, of which a device has a part."""
    x = values(4, 8, 256)
    how = method(name)
    whole = quantize([jnp.asarray(x)], how, on_host=name in ON_HOST)[0]
    divided = lying(x, "e", None, ("m",), e=2, m=2)
    found = quantize([divided], how, on_host=name in ON_HOST)[0]
    same(found, whole)
    codes = {s.device: s.data.shape for s in found.codes.addressable_shards}
    assert set(codes) == set(jax.devices()[:4])
    assert {shape[:2] for shape in codes.values()} == {(2, 8)}
    assert found.codes.sharding.spec == P("e", None, "m")
    scales = found.scales.sharding.spec
    assert scales == (P("e", None, "m") if found.scales.shape[-1] > 1 else P("e", None, None))
    back = dequantize([found], jnp.float32)[0]
    assert back.sharding.is_equivalent_to(divided.sharding, 3)
    np.testing.assert_array_equal(back, dequantize([whole], jnp.float32)[0])


def test_scales_may_lie_otherwise_than_codes() -> None:
    """As whoever restored them had them lie."""
    found = quantize([lying(values(4, 128), "m", None, m=4)], "mxfp4")[0]
    q = QTensor(found.codes, jax.device_put(found.scales, jax.devices()[1]), found.scheme)
    np.testing.assert_array_equal(*(dequantize(q, jnp.float32) for q in (q, found)))


def test_what_is_wrong_is_said_at_once() -> None:
    tree = {
        "cut": lying(values(8, 128), None, "m", m=4),
        "odd": jnp.zeros((4, 48)),
        "whole": jnp.zeros((2, 64), jnp.int32),
        "fine": jnp.zeros((4, 64)),
    }
    with pytest.raises(PlanError) as caught:
        quantize(tree, method("nf4"), {"fin": "quant", "fine": "keep", "*": "quant"})
    assert str(caught.value).splitlines() == [
        "rule fin=quant: matches none of the 4 tensors; did you mean 'fine'? (allowed: cut, fine, odd, whole)",
        "cut: lies divided over devices, and that 0:32 cuts a block of 64 in a dimension of 128; lay it otherwise, or "
        "keep it",
        "odd: last dimension 48 is not a multiple of the block of 64; rules={'odd': 'keep', …} keeps it",
        "whole: holds I32, which is not floating point; rules={'whole': 'keep', …} keeps it",
    ]


def test_rules_go_by_path_in_order_and_may_name_options_and_methods() -> None:
    tree = {
        "layers": [{"up": jnp.ones((4, 64)), "norm": jnp.ones(64)}, {"up": jnp.ones((4, 64))}],
        "head": jnp.ones((4, 64)),
    }
    rules = {"layers.0.up": "int8", "*norm*": "keep", "head": method("int8 a row"), "*": "quant"}
    found = quantize(tree, "mxfp4", rules)
    assert found["layers"][0]["up"].scheme == method("int8").scheme
    assert found["layers"][1]["up"].scheme == method("mxfp4").scheme
    assert found["head"].scheme == method("int8 a row").scheme
    assert isinstance(found["layers"][0]["norm"], jax.Array)


def test_packing_again_has_to_be_asked_for() -> None:
    tree = quantize({"w": jnp.asarray(values(4, 64))}, "int8")
    with pytest.raises(PlanError, match="lose twice"):
        quantize(tree, "mxfp4", {"w": "quant"})
    again = quantize(tree, "mxfp4", {"w": "quant"}, allow_requantize=True)
    same(again["w"], method("mxfp4").encode(method("int8").decode(tree["w"], "F32")))


def test_a_value_that_cannot_be_held_is_named() -> None:
    x = values(4, 64)
    x[2, 5] = np.nan
    with pytest.raises(ValueRangeError, match=r"^a\.w\[0:4,0:64\]: flat index 133"):
        quantize({"a": {"w": jnp.asarray(x)}}, "mxfp4")


def test_no_elements() -> None:
    found = quantize({"w": jnp.zeros((0, 64))}, "mxfp4")["w"]
    assert (found.shape, found.codes.shape) == ((0, 64), (0, 32))


def test_not_inside_jit() -> None:
    with pytest.raises(PlanError, match="is traced"):
        jax.jit(lambda w: quantize({"w": w}, "mxfp4"))(jnp.ones((4, 64)))


def test_shapes_give_shapes_where_they_lie() -> None:
    lie = lying(values(8, 64), "m", None, m=2).sharding
    tree = {
        "w": jax.ShapeDtypeStruct((8, 64), jnp.float32, sharding=lie),
        "v": jax.ShapeDtypeStruct((4, 64), jnp.float32),
    }
    found = quantize(tree, "mxfp4")
    assert (found["w"].codes.shape, found["w"].scales.shape) == ((8, 32), (8, 2))
    assert found["w"].codes.sharding == lie
    assert found["v"].codes.sharding is None


def test_orbax_keeps_it(tmp_path: Path) -> None:
    tree = quantize({"a": {"w": lying(values(4, 128), "m", m=2)}, "norm": jnp.ones(4)}, "nvfp4")
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "kept", tree, custom_metadata=describe(tree))
        checkpointer.wait_until_finished()
        lies = {"a.w.codes": tree["a"]["w"].codes.sharding}
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        found = checkpointer.restore(tmp_path / "kept", abstract(tmp_path / "kept", lambda n, s: lies.get(n, one)))
    same(found["a"]["w"], jax.tree.map(np.asarray, tree["a"]["w"]))
    assert found["a"]["w"].codes.sharding == tree["a"]["w"].codes.sharding


class Gated(nnx.Module):
    """Parameters of its own beside layers of Flax."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Embed(10, 64, rngs=rngs)
        self.up = nnx.Linear(64, 96, rngs=rngs)
        self.twice = nnx.List([self.up])
        self.own = nnx.Param(jax.random.normal(rngs(), (7, 96)), names=("own.weight",))

    def __call__(self, ids: Any) -> Any:
        from plugins.kernels.matmul.xla import matmul

        return matmul(self.up(self.embed(ids)), self.own.get_value())


def test_a_module_has_packed_layers_instead() -> None:
    module = Gated(nnx.Rngs(0))
    found = quantize(module, "int8")
    assert isinstance(module.up, nnx.Linear)
    assert not isinstance(found.up, nnx.Linear)
    assert found.twice[0] is found.up
    assert found.embed.embedding.get_value() is module.embed.embedding.get_value()
    ids = jnp.arange(5)
    np.testing.assert_allclose(found(ids), module(ids), rtol=0.05, atol=0.05)
    back = dequantize(found, jnp.float32)
    assert isinstance(back.up, nnx.Linear)
    assert back.twice[0] is back.up
    np.testing.assert_allclose(back(ids), found(ids), rtol=1e-5, atol=1e-5)


def test_a_layer_by_itself_goes_by_the_rules_too() -> None:
    linear = nnx.Linear(64, 4, rngs=nnx.Rngs(0))  # as wide as what other tests pack: the same programs
    assert quantize(linear, "int8").weight.get_value().scheme == method("int8").scheme
    assert quantize(linear, "int8", {"kernel": "mxfp4"}).weight.get_value().scheme == method("mxfp4").scheme


def test_a_parameter_of_its_own_goes_by_the_name_it_has() -> None:
    found = quantize(Gated(nnx.Rngs(0)), "int8", {"own.weight": "quant"})
    assert isinstance(found.own.get_value(), QTensor)
    assert isinstance(found.up, nnx.Linear)
    ids = jnp.arange(5)
    np.testing.assert_allclose(found(ids), dequantize(found, jnp.float32)(ids), rtol=1e-5, atol=1e-5)


def test_layers_that_compute_with_arrays_are_refused_with_the_rest() -> None:
    with pytest.raises(PlanError) as caught:
        quantize(Gated(nnx.Rngs(0)), "mxfp4", {"embed*": "quant", "twice*": "quant"})
    assert str(caught.value).splitlines() == [
        "embed.embedding: is a parameter of Flax's Embed, which computes with arrays; keep it",
        "twice.0.bias: is a parameter of Flax's Linear, which computes with arrays; keep it",
    ]
