"""How tensors lie over a mesh, and every reason why they cannot."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.errors import PlanError
from pipeline.mesh import SINGLE, Mesh, Parameter
from pipeline.planning.layout import batch_problems, lay_out
from pipeline.tensors.scheme import MXFP4, Scheme
from pipeline.tensors.spec import TensorSpec

EMBED, HEAD_DIM = 96, 32
TENSOR = {"heads": "tensor", "kv_heads": "tensor", "mlp": "tensor", "vocab": "tensor"}
STORED = ("experts", "vocab", "mlp", "heads", "kv_heads", "embed")
INT8_128 = Scheme(element="int8", block_elems=128, scale="f32", block_rows=128)


def layer(heads: int = 4, kv_heads: int = 2, inter: int = 128, experts: int = 0, vocab: int = 64) -> list[Parameter]:
    """One layer of a decoder; every dimension is another number."""
    q, kv, where = heads * HEAD_DIM, kv_heads * HEAD_DIM, "model.layers.0"

    def one(name: str, shape: Sequence[int], axes: str, units: Sequence[int] | None = None) -> Parameter:
        return Parameter((name,), tuple(shape), tuple(axes.split()), tuple(units or [1] * len(shape)))

    moe = [
        one(f"{where}.mlp.gate_up", (experts, 2 * inter, EMBED), "experts mlp embed", (1, 2, 1)),
        one(f"{where}.mlp.down", (experts, EMBED, inter), "experts embed mlp"),
    ]
    dense = [
        one(f"{where}.mlp.up", (inter, EMBED), "mlp embed"),
        one(f"{where}.mlp.down", (EMBED, inter), "embed mlp"),
    ]
    return [
        one("embed", (vocab, EMBED), "vocab embed"),
        one(f"{where}.norm", (EMBED,), "embed"),
        one(f"{where}.q", (q, EMBED), "heads embed", (HEAD_DIM, 1)),
        one(f"{where}.k", (kv, EMBED), "kv_heads embed", (HEAD_DIM, 1)),
        one(f"{where}.o", (EMBED, q), "embed heads", (1, HEAD_DIM)),
        one(f"{where}.sinks", (heads,), "heads"),
        *(moe if experts else dense),
    ]


def specs_of(parameters: Sequence[Parameter], **schemes: Scheme) -> dict[str, TensorSpec]:
    """BF16, but for those whose last name says another."""
    shapes = {n: p.shape[1:] if p.stack else p.shape for p in parameters for n in p.names}
    return {n: TensorSpec(shape, "BF16", schemes.get(n.rpartition(".")[2])) for n, shape in shapes.items()}


def problems(mesh: Mesh, parameters: Sequence[Parameter], specs: Any = None, **known: Any) -> dict[str, str]:
    with pytest.raises(PlanError) as why:
        lay_out(mesh, parameters, specs or specs_of(parameters), **known)
    return {p.where: p.message for p in why.value.problems}


def test_one_device_holds_everything() -> None:
    found = lay_out(SINGLE, layer(), specs_of(layer()), devices=1, batch={"rows": 3})
    assert [p.name for p in layer()] == list(found)
    assert all(layout.replicated and layout.used == layout for layout in found.values())


def test_axes_of_one_device_divide_nothing_and_may_be_in_no_rule() -> None:
    mesh = Mesh({"fsdp": 1, "spare": 1}, {"batch": "fsdp"}, {"fsdp": STORED}, replicated_most=0)
    found = lay_out(mesh, layer(), specs_of(layer()), batch={"rows": 3})
    assert all(layout.replicated for layout in found.values())


def test_an_axis_that_computing_divides_over_is_not_stored_over_again() -> None:
    mesh = Mesh({"expert": 2}, {"experts": "expert"}, {"expert": STORED})
    found = lay_out(mesh, layer(experts=4), specs_of(layer(experts=4)))
    down, q = found["model.layers.0.mlp.down"], found["model.layers.0.q"]
    assert (down.axes, down.gathered) == ((("expert",), (), ()), ((), (), ()))
    assert (q.axes, q.gathered) == ((("expert",), ()), (("expert",), ()))


def test_rules_divide_for_computing_and_stored_divides_what_lies() -> None:
    mesh = Mesh({"fsdp": 2, "tensor": 2}, {**TENSOR, "batch": "fsdp"}, {"fsdp": STORED})
    found = lay_out(mesh, layer(), specs_of(layer()))
    up, q, norm = (found[f"model.layers.0.{name}"] for name in ("mlp.up", "q", "norm"))
    assert (up.axes, up.gathered) == ((("tensor", "fsdp"), ()), (("fsdp",), ()))
    assert up.local_shape(mesh) == (128 // 4, EMBED)
    assert up.used.local_shape(mesh) == (128 // 2, EMBED)
    assert q.local_shape(mesh) == (HEAD_DIM, EMBED)
    assert (norm.axes, norm.gathered) == ((("fsdp",),), (("fsdp",),))


def test_stored_takes_the_first_that_divides_in_whole_units() -> None:
    """4 heads over 8 devices would cut heads, so the other dimension is divided."""
    mesh = Mesh({"fsdp": 8}, {"batch": "fsdp"}, {"fsdp": STORED}, replicated_most=1)
    found = lay_out(mesh, layer(), specs_of(layer()))
    assert found["model.layers.0.q"].axes == ((), ("fsdp",))
    assert found["model.layers.0.sinks"].replicated


def test_parts_are_whole_blocks() -> None:
    """EMBED is 3 blocks of 32: two devices would cut one, so rows are divided; three would not."""
    columns = {"fsdp": ("embed",)}
    packed = specs_of(layer(), up=MXFP4)
    two, three = (Mesh({"fsdp": n}, {"batch": "fsdp"}, columns, replicated_most=1) for n in (2, 3))
    assert lay_out(two, layer(), packed)["model.layers.0.mlp.up"].replicated
    assert lay_out(three, layer(), packed)["model.layers.0.mlp.up"].axes == ((), ("fsdp",))
    assert lay_out(two, layer(), specs_of(layer()))["model.layers.0.mlp.up"].axes == ((), ("fsdp",))


def test_a_mesh_of_two_axes_over_one_dimension() -> None:
    mesh = Mesh({"a": 2, "b": 2}, {"mlp": ("a", "b")}, replicated_most=1)
    layout = lay_out(mesh, layer(), specs_of(layer()))["model.layers.0.mlp.up"]
    assert layout.axes == (("a", "b"), ())
    assert [layout.box(mesh, d)[0].start for d in range(4)] == [0, 32, 64, 96]


def test_experts_that_are_files_of_their_own_are_divided_by_name() -> None:
    names = tuple(f"experts.{e}.up" for e in range(4))
    stack = Parameter(names, (4, 128, EMBED), ("experts", "mlp", "embed"), (1, 1, 1), stack=True)
    mesh = Mesh({"expert": 2}, {"experts": "expert"})
    found = lay_out(mesh, [stack], specs_of([stack], up=MXFP4))
    assert found["experts.0.up"].box(mesh, 1) == (slice(2, 4), slice(0, 128), slice(0, EMBED))


def test_a_rule_that_matches_nothing_says_what_the_model_has() -> None:
    said = problems(Mesh({"expert": 2}, {"experts": "expert"}, replicated_most=1), layer())
    assert list(said) == ["mesh.rules.experts"]
    assert "no tensor of this model has 'experts'" in said["mesh.rules.experts"]
    assert "(allowed: batch, vocab, heads, kv_heads, mlp;" in said["mesh.rules.experts"]


def test_a_rule_of_one_device_may_match_nothing() -> None:
    mesh = Mesh({"expert": 1, "tensor": 2}, {**TENSOR, "experts": "expert"})
    assert lay_out(mesh, layer(), specs_of(layer()))


def test_an_axis_of_the_mesh_that_nothing_uses() -> None:
    said = problems(Mesh({"tensor": 2, "data": 2}, TENSOR), layer())
    assert list(said) == ["mesh.axes.data"]
    assert "nothing is divided over it; name it in mesh.rules (batch, " in said["mesh.axes.data"]
    said = problems(Mesh({"tensor": 2, "fsdp": 7}, TENSOR, {"fsdp": ("embed", "experts")}), layer())
    assert "none of embed, experts divides" in said["mesh.axes.fsdp"]


def test_an_axis_used_twice_in_a_tensor() -> None:
    mesh = Mesh({"tensor": 2}, {"experts": "tensor", "mlp": "tensor"}, replicated_most=1)
    said = problems(mesh, layer(experts=4))
    assert "model.layers.*.mlp.gate_up has experts and mlp, and tensor divides a tensor once" in said["mesh.rules.mlp"]


@pytest.mark.parametrize(
    ("model", "rule", "cut", "legal"),
    [
        (layer(heads=5, kv_heads=5), "heads", "model.layers.*.q (160 in 5 of 32)", "1, 5"),
        (layer(heads=6, kv_heads=3), "kv_heads", "model.layers.*.k (96 in 3 of 32)", "1, 3"),
        (layer(vocab=51), "vocab", "embed (51)", "1, 3, 17, 51"),
        (layer(inter=63), "mlp", "model.layers.*.mlp.up (63), model.layers.*.mlp.down (63)", "1, 3, 7, 9, 21, 63"),
    ],
)
def test_a_dimension_that_does_not_divide_says_what_would(model: Any, rule: str, cut: str, legal: str) -> None:
    said = problems(Mesh({"tensor": 2}, TENSOR), model)[f"mesh.rules.{rule}"]
    assert said.startswith(f"2 ways (tensor) would cut {cut}")
    assert f"; legal: {legal}" in said


def test_three_experts() -> None:
    said = problems(Mesh({"expert": 2}, {"experts": "expert"}, replicated_most=1), layer(experts=3))
    assert said["mesh.rules.experts"].endswith("legal: 1, 3")


def test_gate_and_up_in_turns_stay_together() -> None:
    """The matrix has 126 rows, of which 6 ways would take 21: a pair cut in two."""
    said = problems(Mesh({"tensor": 6}, {"mlp": "tensor"}, replicated_most=1), layer(inter=63, experts=2))
    assert "gate_up (126 in 63 of 2)" in said["mesh.rules.mlp"]


def test_blocks_of_a_scheme_stay_whole() -> None:
    """256 columns are 2 blocks of 128, and 8 of 32."""
    model, mesh = layer(inter=256), Mesh({"tensor": 4}, {"mlp": "tensor"}, replicated_most=1)
    assert lay_out(mesh, model, specs_of(model, down=MXFP4))
    said = problems(mesh, model, specs_of(model, down=INT8_128))["mesh.rules.mlp"]
    assert said == "4 ways (tensor) would cut model.layers.*.mlp.down (256 in 2 of 128); legal: 1, 2"
    ragged = layer(inter=192)
    said = problems(mesh, ragged, specs_of(ragged, up=INT8_128, down=MXFP4))["mesh.rules.mlp"]
    assert "up (192, no multiple of 128)" in said
    assert said.endswith("legal: 1")


def test_legal_sizes_of_an_axis_that_several_rules_name() -> None:
    said = problems(Mesh({"tensor": 4}, TENSOR), layer(heads=4, kv_heads=2))["mesh.rules.kv_heads"]
    assert "legal: 1, 2" in said
    said = problems(Mesh({"tensor": 4}, TENSOR), layer(heads=6, kv_heads=6, inter=128))["mesh.rules.heads"]
    assert said.endswith("legal: 1, 2, 3, 6; with vocab, kv_heads and mlp: 1, 2")


def test_another_number_of_devices() -> None:
    mesh = Mesh({"fsdp": 2, "tensor": 2}, {**TENSOR, "batch": "fsdp"}, {"fsdp": STORED})
    assert lay_out(mesh, layer(), specs_of(layer()), devices=4)
    said = problems(mesh, layer(), devices=8)["mesh.axes"]
    assert said.startswith("fsdp 2 × tensor 2 = 4 devices, and there are 8")


def test_a_batch_that_does_not_divide() -> None:
    mesh = Mesh({"data": 4}, {"batch": "data"}, replicated_most=1)
    assert not batch_problems(mesh, {"evaluate.windows.batch": 8})
    said = problems(mesh, layer(), batch={"evaluate.windows.batch": 6})
    assert said == {
        "evaluate.windows.batch": "6 rows do not divide over data, 4 ways; multiples of 4 do: 4, 8, …",
    }


def test_too_much_that_lies_whole_names_the_largest() -> None:
    mesh = Mesh({"tensor": 2}, {"mlp": "tensor"}, replicated_most=0.5)
    total = sum(math.prod(p.shape) for p in layer())
    whole = sum(math.prod(p.shape) for p in layer() if "mlp" not in p.axes)
    said = problems(mesh, layer())["mesh.replicated_most"]
    assert said.startswith(f"{100 * whole / total:.3g} % of the weights' bytes lie whole on every device, and 50 % may")
    assert said.index("model.layers.*.q ") < said.index("embed ") < said.index("model.layers.*.k ")
    assert said.endswith("mesh.stored can divide them")


def test_too_much_that_lies_whole_though_it_might_be_divided_says_in_how_many_parts() -> None:
    """Heads are never cut: 96 columns, and as many heads as there are."""
    mesh = Mesh({"fsdp": 7}, {"batch": "fsdp"}, {"fsdp": ("heads", "embed")}, replicated_most=0.00002)
    said = problems(mesh, layer(heads=5))["mesh.replicated_most"]
    assert "100 % of the weights' bytes lie whole on every device, and 0.002 % may: model.layers.*.o " in said
    assert said.endswith("; over fsdp the first of them in 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 96")


def test_all_problems_at_once() -> None:
    mesh = Mesh({"tensor": 4, "data": 3, "spare": 2}, {**TENSOR, "batch": "data", "experts": "tensor"})
    said = problems(mesh, layer(heads=5, kv_heads=5, vocab=51), devices=6, batch={"rows": 4})
    assert set(said) == {
        "mesh.axes",
        "mesh.axes.spare",
        "mesh.rules.experts",
        "mesh.rules.heads",
        "mesh.rules.kv_heads",
        "mesh.rules.vocab",
        "rows",
    }


def test_a_checkpoint_that_is_not_this_model() -> None:
    specs = specs_of(layer())
    specs["embeds"] = specs.pop("embed")
    specs["model.layers.0.norm"] = TensorSpec((EMBED + 1,), "BF16")
    said = problems(SINGLE, layer(), specs)
    assert "is missing; did you mean 'embeds'?" in said["embed"]
    assert said["model.layers.0.norm"] == "has shape [97]; config.json makes it [96]"
