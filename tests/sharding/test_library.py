"""Somebody's own module over a mesh, outside any pipeline: its parameters lie as its names and the mesh's rules say,
and it computes what it computes on one device."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from pipeline.errors import PlanError
from pipeline.mesh import Mesh
from pipeline.ops import Kernel
from pipeline.tensors.blocks import component_box
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.store import normalize
from plugins.mesh.library import preset, shardings
from plugins.mesh.store import held_spec
from tests.cases import model_runs
from tests.cases.quantized import quantized

BATCH, EMBED, MLP, CLASSES = 4, 96, 256, 40
SCHEMES = {
    "mxfp4": MXFP4, "int8 a row": Scheme("int8", 0, "f32"), "nvfp4": Scheme("e2m1", 16, "e4m3", second="f32"),
}  # fmt: skip
MATMUL = Kernel("matmul", ("xla",))
TENSOR = {"mlp": "tensor", "vocab": "tensor"}
EVERYTHING = ("mlp", "vocab", "embed")
EVERYWHERE = ("experts", "vocab", "mlp", "heads", "kv_heads", "embed")  # conf/mesh
MESHES = {
    "data": Mesh({"data": 4}, {"batch": "data"}, replicated_most=1.0),
    "fsdp": Mesh({"fsdp": 4}, {"batch": "fsdp"}, {"fsdp": EVERYTHING}),
    "tensor": Mesh({"tensor": 4}, TENSOR),
    "fsdp_tensor": Mesh({"fsdp": 2, "tensor": 2}, {"batch": "fsdp", **TENSOR}, {"fsdp": ("embed",)}),
}


P: Any = PartitionSpec  # which has no types


class Classifier(nnx.Module):
    """Every dimension has another size. Weights are (out, in): packed ones have their blocks along the last."""

    def __init__(self, scheme: Scheme | None, **of_up: Any):
        rng = np.random.default_rng(0)

        def weight(seed: int, *shape: int) -> Any:
            if scheme is not None:
                return jax.tree.map(jnp.asarray, quantized(scheme, shape, seed))
            return jnp.asarray(rng.standard_normal(shape, "f4"))

        self.layers = nnx.List([nnx.Param(weight(0, MLP, EMBED), **(of_up or {"axes": ("mlp", "embed")}))])
        self.bias = nnx.Param(jnp.asarray(rng.standard_normal(MLP, "f4")), axes=("mlp",))
        self.down = nnx.Param(weight(1, EMBED, MLP), axes=("embed", "mlp"))
        self.head = nnx.Param(weight(2, CLASSES, EMBED), axes=("vocab", "embed"))
        self.counter = nnx.Variable(jnp.zeros(()))  # no parameter, so nobody asks how it lies

    def __call__(self, x: Any) -> Any:
        up, down, head = (p.get_value() for p in (self.layers[0], self.down, self.head))
        hidden = jnp.tanh(MATMUL(x, up) / 10 + self.bias.get_value()[None])
        return MATMUL(jnp.tanh(MATMUL(hidden, down) / 10), head)


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with model_runs.quick_compilation():
        yield


@jax.jit
def apply(graph: Any, params: Any, rest: Any, x: Any) -> Any:
    return nnx.merge(graph, params, rest)(x)


@cache
def single(scheme: str) -> tuple[Any, ...]:
    """A module in parts, rows, and what it makes of them on one device."""
    split: Any = nnx.split(Classifier(SCHEMES.get(scheme)), nnx.Param, ...)
    graph, params, rest = split
    x = jnp.asarray(np.random.default_rng(1).standard_normal((BATCH, EMBED), "f4"))
    return graph, params, rest, x, np.asarray(apply(graph, params, rest, x))


@pytest.mark.parametrize(
    ("mesh", "scheme"),
    [*((mesh, "plain") for mesh in MESHES), *(("fsdp_tensor", scheme) for scheme in SCHEMES)],
)
@pytest.mark.brief("fsdp_tensor-plain", "data-plain", "fsdp_tensor-mxfp4", "fsdp_tensor-int8 a row")
def test_a_module_computes_on_a_mesh_what_it_does_on_one_device(mesh: str, scheme: str) -> None:
    graph, params, rest, x, expected = single(scheme)
    lie = shardings(nnx.merge(graph, params, rest), MESHES[mesh])
    structure: Any = jax.tree.structure(lie)
    assert structure == jax.tree.structure(params)
    there = jax.device_put(params, lie)
    for given, put in zip(jax.tree.leaves(params), jax.tree.leaves(there), strict=True):
        assert (np.asarray(given) == np.asarray(put)).all()
    over = next(iter(jax.tree.leaves(lie))).mesh
    rows = jax.device_put(x, NamedSharding(over, P(MESHES[mesh].over("batch") or None)))
    found = apply(graph, there, rest, rows)
    assert len(found.sharding.device_set) == 4
    assert np.abs(np.asarray(found) - expected).max() <= 1e-5 * np.abs(expected).max()


def test_what_lies_where() -> None:
    module = Classifier(None)
    lie = nnx.to_pure_dict(shardings(module, MESHES["fsdp_tensor"]))
    assert lie["layers"][0].spec == P("tensor", "fsdp")
    assert lie["bias"].spec == P("tensor")
    assert lie["down"].spec == P("fsdp", "tensor")
    assert lie["head"].spec == P("tensor", "fsdp")
    backwards = list(reversed(jax.devices()))
    assert list(shardings(module, MESHES["tensor"], backwards)["bias"].get_value().mesh.devices.flat) == backwards


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_device_has_all_components_of_its_box(scheme: str) -> None:
    module = Classifier(SCHEMES[scheme])
    there = jax.device_put(nnx.state(module, nnx.Param), shardings(module, MESHES["tensor"]))
    value = there["layers"][0].get_value()
    spec, rows = held_spec(value), MLP // 4
    for component, array in value.components.items():
        for shard in array.addressable_shards:
            box = (slice(shard.device.id * rows, (shard.device.id + 1) * rows), slice(0, EMBED))
            assert normalize(shard.index, array.shape) == component_box(spec, component, box), component


def test_shapes_are_enough() -> None:
    abstract = nnx.eval_shape(lambda: Classifier(None))
    lie = shardings(abstract, MESHES["fsdp"])
    assert jax.tree.leaves(lie) == jax.tree.leaves(shardings(Classifier(None), MESHES["fsdp"]))


def problems(module: nnx.Module, mesh: Mesh, devices: Any = None) -> dict[str, str]:
    with pytest.raises(PlanError) as raised:
        shardings(module, mesh, devices)
    found: dict[str, str] = {}
    for problem in raised.value.problems:
        found[problem.where] = f"{found.get(problem.where, '')}{problem.message}\n"
    return found


def test_a_parameter_that_does_not_say_what_it_counts_is_a_problem() -> None:
    module: Any = Classifier(None)
    module.down = nnx.Param(jnp.zeros((EMBED, MLP)))
    module.layers[0] = nnx.Param(jnp.zeros((MLP, EMBED)), axes=("mpl", "embed"), units=(0, 1))
    module.head = nnx.Param(jnp.zeros((CLASSES, EMBED)), axes=("vocab",))
    module.bias = nnx.Param(jnp.zeros(MLP), axes="mlp", units=2)
    module.extra = nnx.Param(jnp.zeros((), "int4"), axes=())
    found = problems(module, MESHES["tensor"], jax.devices()[:3])
    assert "(96, 256) does not say what its dimensions count" in found["down"]
    assert "('vocab',)" in found["head"]
    assert "one name for each dimension" in found["head"]
    assert "axes 'mlp' and shape (256,)" in found["bias"]
    assert "units 2 and shape (256,)" in found["bias"]
    assert "int4" in found["extra"]
    assert "there are 3" in found["mesh.axes"]
    assert "(0, 1)" in found["layers.0"]


def test_names_of_axes_are_ours_and_a_near_one_is_said() -> None:
    found = problems(Classifier(None, axes=("mpl", "batch")), MESHES["tensor"])
    assert set(found) == {"layers.0"}
    assert "'batch' is no logical axis of weights" in found["layers.0"]
    assert "'mpl' is no logical axis of weights; did you mean 'mlp'?" in found["layers.0"]


def test_what_does_not_divide_is_said_all_at_once_with_what_would() -> None:
    mesh = Mesh({"tensor": 4, "data": 1}, {**TENSOR, "heads": "tensor", "kv_heads": "tensor"})
    found = problems(Classifier(None, axes=("mlp", "embed"), units=(96, 1)), mesh)
    assert "layers.0 (256, no multiple of 96)" in found["mesh.rules.mlp"]
    assert "no tensor of this model has 'heads'" in found["mesh.rules.heads"]
    assert "mesh.rules.kv_heads" in found
    much = problems(Classifier(None), Mesh({"tensor": 4}, {"vocab": "tensor"}))["mesh.replicated_most"]
    assert "lie whole on every device" in much
    assert "down 96.0 KiB, layers.0 96.0 KiB, bias 1.0 KiB" in much


def test_blocks_and_units_are_never_cut() -> None:
    """96 columns are 3 blocks of 32: 4 ways cut one, though 96 divides by 4."""
    mesh = Mesh({"fsdp": 4}, {}, {"fsdp": ("embed",)}, replicated_most=1.0)
    assert nnx.to_pure_dict(shardings(Classifier(None), mesh))["head"].spec == P(None, "fsdp")
    packed = shardings(Classifier(SCHEMES["mxfp4"]), mesh)
    assert all(lie.is_fully_replicated for lie in jax.tree.leaves(packed["head"]))
    units = shardings(Classifier(None, axes=("mlp", "embed"), units=(1, 32)), mesh)
    assert units["layers"][0].get_value().is_fully_replicated


def test_meshes_by_the_names_of_the_pipeline() -> None:
    assert preset("fsdp_tensor", fsdp=4).axes == {"fsdp": 4, "tensor": 2}
    assert preset("multihost", host=1) == Mesh(
        {"host": 1, "fsdp": 4}, {"batch": ("host", "fsdp")}, {"fsdp": tuple(EVERYWHERE)}, 0.02
    )
    assert shardings(Classifier(None), preset("fsdp", fsdp=4))["bias"].get_value().spec == P("fsdp")
    for given, said in {
        ("fspd", "fsdp"): r"mesh: there is no 'fspd'; did you mean 'fsdp'\? \(allowed: data, expert, fsdp",
        ("fsdp", "fspd"): r"mesh\.axes\.fspd: mesh=fsdp has no such axis; did you mean 'fsdp'\? \(allowed: fsdp\)",
        ("single", "data"): r"mesh\.axes\.data: mesh=single has no such axis",
    }.items():
        with pytest.raises(PlanError, match=said):
            preset(given[0], **{given[1]: 4})
    with pytest.raises(PlanError, match="0 devices along it"):
        preset("data", data=0)
