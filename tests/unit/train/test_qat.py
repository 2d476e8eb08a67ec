"""What the model computes with while it is trained is what the quantized export decodes to, bit for bit."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.coded_store import CodedStore
from pipeline.ops import Kernel
from pipeline.rules import Rule
from pipeline.tensors.spec import TensorSpec, numpy_dtype
from pipeline.testing.memory import MemoryStore
from plugins.models.family import family_of
from plugins.quant.blockwise import Blockwise
from plugins.train.objectives import CausalLM
from plugins.train.optimizers import AdamW
from plugins.train.packing import Packing
from plugins.train.qat import Qat
from plugins.train.step import Step, make_step
from tests.cases import model_runs, trained
from tests.cases.quantized import quant_method

INT8 = Blockwise("int8", 0, "f32", scale_rule="amax")


# What no compiled program knows; of the second also experts, each a tensor of its own in files.
ON_HOST = {
    "searched": Blockwise("e2m1", 16, "e8m0", search="mse"),
    "twice": Blockwise("nf4", 8, "dynamic8", second="dynamic8", scale_rule="amax", ties="down", codes_from="unrounded"),
}


def one_layer(kind: str) -> dict[str, Any]:
    """Options of config.json: each weight is rounded by itself, and to compile it is most of the work."""
    types = trained.CONFIGS[kind].get("layer_types")
    return {"num_hidden_layers": 1, **({} if types is None else {"layer_types": types[:1]})}


def parameters_of(kind: str) -> Any:
    config = {**trained.CONFIGS[kind], **one_layer(kind)}
    return family_of(config, model_runs.engine().families).parameters(config)


def specs_of(kind: str, dtype: str) -> dict[str, TensorSpec]:
    shapes = {n: p.shape[1:] if p.stack else p.shape for p in parameters_of(kind) for n in p.names}
    return {name: TensorSpec(shape, dtype) for name, shape in shapes.items()}


def qat(kind: str, name: str, **options: Any) -> Qat:
    """Projections of attention by an option, experts and the MLP as INT8 by rows."""
    inner = "*.experts.*_proj" if kind == "gpt_oss" else "*mlp*_proj.weight"
    rules = Rule(match="*self_attn*_proj.weight"), Rule("quant" if name == "twice" else "rows", match=inner)
    method = ON_HOST[name] if name in ON_HOST else quant_method(name)
    return Qat(packing=Packing(method, rules, methods={"rows": INT8}), **options)


def step_of(kind: str, how: Qat, dtype: str) -> Step:
    model = trained.model(kind, **one_layer(kind))
    model.ops = how.ops(model.ops)
    leaves = partial(how.leaves, parameters=parameters_of(kind), specs=specs_of(kind, dtype))
    return make_step(model, CausalLM(), AdamW(rate=1e-2), steps=100, leaves=leaves)


@pytest.mark.parametrize(
    ("kind", "name", "dtype"),
    [
        ("llama", "q4_1", "BF16"),
        ("gpt_oss", "int4", "F32"),
        ("qwen3_moe", "mxfp4", "BF16"),
        ("llama", "searched", "BF16"),
        ("qwen3_moe", "twice", "F32"),
    ],
)
@pytest.mark.brief("qwen3_moe-mxfp4-BF16", "llama-searched-BF16", "qwen3_moe-twice-F32")
def test_the_export_is_what_training_saw(kind: str, name: str, dtype: str) -> None:
    how = qat(kind, name, on_host=name in ON_HOST)
    step = step_of(kind, how, dtype)
    assert list(how.problems(parameters_of(kind), specs_of(kind, dtype))) == []
    state, losses = step.init(trained.parameters(kind, **one_layer(kind))), []
    for _ in range(4):
        state, seen = step(state, trained.batches(2, 2, 24), trained.key())
        losses.append(float(seen["loss"]))
        assert (np.asarray(seen["gradient_norms"]) > 0).all()
    assert losses[-1] < losses[0]
    saw = jax.jit(step.gradients.leaves)(state["parameters"], {}, None)
    cast, written = Kernel("cast", ("numpy",)), {}
    for p in parameters_of(kind):  # as `train` writes it, and then `quantize` reads it
        value = np.asarray(state["parameters"][p.name])
        written |= {n: value[i] if p.stack else value for i, n in enumerate(p.names)}
    written = {n: v if dtype == "F32" else cast(v, dtype) for n, v in written.items()}
    methods, _ = how.packing.chosen(specs_of(kind, dtype))
    assert 0 < len(methods) < len(written)
    store = CodedStore(MemoryStore(written), methods, measure=False)
    for p in parameters_of(kind):
        for i, n in enumerate(p.names):
            value = store.read(n)
            value = methods[n].decode(value, "F32") if n in methods else value.astype(np.float32)
            mine = np.asarray(saw[p.name][i] if p.stack else saw[p.name])
            assert mine.tobytes() == value.tobytes(), n
    assert numpy_dtype(dtype) == next(iter(written.values())).dtype


def test_gradients_are_those_of_the_rounded_weights() -> None:
    """Straight through: as if the masters were what they are rounded to."""
    one = one_layer("llama")
    step = step_of("llama", qat("llama", "mxfp4"), "BF16")
    plain = make_step(trained.model("llama", **one), CausalLM(), AdamW(), steps=100)
    masters = {n: jnp.asarray(w) for n, w in trained.parameters("llama", **one).items()}
    batches = trained.batches(1, 2, 24)
    rounded = jax.jit(step.gradients.leaves)(masters, {}, None)
    mine = jax.jit(step.gradients)(masters, batches, trained.key(), {}, {})
    theirs = jax.jit(plain.gradients)(rounded, batches, trained.key(), {}, {})
    np.testing.assert_allclose(mine[0][0], theirs[0][0], rtol=1e-6)
    for name, gradient in theirs[1].items():
        np.testing.assert_allclose(mine[1][name], gradient, atol=1e-5 * np.abs(gradient).max(), err_msg=name)


def test_activations_are_rounded_where_weights_are_packed() -> None:
    """With scales of whole rows, of 8 bits: the loss changes, and not much; nothing's gradient is lost."""
    kind = "gpt_oss"
    whole, rounded = step_of(kind, qat(kind, "int8"), "F32"), step_of(kind, qat(kind, "int8", activations=INT8), "F32")
    masters = {n: jnp.asarray(w) for n, w in trained.parameters(kind, **one_layer(kind)).items()}
    batches = trained.batches(1, 2, 24)
    (a, _, _), expected = jax.jit(whole.gradients)(masters, batches, trained.key(), {}, {})
    (b, _, _), found = jax.jit(rounded.gradients)(masters, batches, trained.key(), {}, {})
    assert 0 < abs(float(a - b)) < 0.02
    whole_norm = np.linalg.norm([np.linalg.norm(g) for g in expected.values()])
    off = np.linalg.norm([np.linalg.norm(found[name] - g) for name, g in expected.items()])
    assert 0 < off < 0.2 * whole_norm  # a token may go to another expert
    assert all(np.linalg.norm(g) > 0 for g in found.values())


def test_what_is_wrong_is_said_at_once() -> None:
    searched = Blockwise("e2m1", 32, "e8m0", search="mse")
    rules = (Rule(match="*q_proj.weight"), Rule(match="*x_proj*"), Rule("rows", match="*norm.weight"))
    tiles = Blockwise("e4m3", 32, "f32", block_rows=2, scale_rule="amax")
    how = Qat(packing=Packing(searched, rules, methods={"rows": tiles}), activations=tiles)
    said = "\n".join(map(str, how.problems(parameters_of("llama"), specs_of("llama", "BF16"))))
    assert "rule *x_proj*=quant: matches none" in said
    assert "model.layers.0.self_attn.q_proj.weight: cannot be trained for (xla: xla does not search" in said
    assert "train.transform.on_host=true rounds it on the host" in said
    assert "model.norm.weight: a vector has no rows" in said
    assert "activations: scales that are of one row alone are needed" in said
    hosted = Qat(packing=Packing(searched, rules[:1]), on_host=True)
    assert list(hosted.problems(parameters_of("llama"), specs_of("llama", "BF16"))) == []
    assert "on_host: true is for one device so far" in str(next(hosted.mesh_problems((), {}, {}, len)))
    nothing = Qat(packing=Packing(quant_method("none"), (Rule(match="*q_proj.weight"),)))
    assert "packs no tensor" in str(next(iter(nothing.problems(parameters_of("llama"), specs_of("llama", "BF16")))))
    unlike = (Rule(match="*.experts.0.up_proj.weight"),)
    how = Qat(packing=Packing(INT8, unlike))
    problem = next(how.problems(parameters_of("qwen3_moe"), specs_of("qwen3_moe", "BF16")))
    assert "4 tensors are computed with as one, and rules pack them unlike" in str(problem)
