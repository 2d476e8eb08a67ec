"""Wrong versions of the models that are easy to write: the comparison of test_model_parity catches each of them, and
names the layer."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pipeline.ops import Kernel
from plugins.models.common import layers
from plugins.models.gpt_oss import model as gpt_oss
from plugins.models.qwen import model as qwen
from tests.cases import model_runs
from tests.cases.toy_models import toy
from tests.oracle.test_model_parity import assert_same, straight

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _quick_compilation() -> Iterator[None]:
    with model_runs.quick_compilation():
        yield


def taps(runtime: Any, ids: Any) -> Any:
    """Op by op: a mutant's program would be compiled for one call, and its ops are those of all others."""
    runtime.eager = True
    return runtime.taps(ids, straight(ids))


def assert_caught(name: str, where: str, load: Callable[..., Any] = model_runs.load, **options: Any) -> None:
    t = toy(name)
    got = taps(load(t.folder, **options), t.ids)
    with pytest.raises(AssertionError, match=f"^{where} is the first to differ"):
        assert_same(got, t.taps)


def ops(**wrong: Callable[..., Any]) -> Any:
    """The engine's ops; `wrong[op](real, *args, **kwargs)` is called instead of the real one."""
    real = model_runs.engine().ops

    def instead(op: str) -> Kernel:
        class Instead(Kernel):
            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                return wrong[op](super().__call__, *args, **kwargs)

        return Instead(op, getattr(real, op).backends)

    return replace(real, **{op: instead(op) for op in wrong})


def window_plus(n: int) -> Any:
    def attention(real: Any, *args: Any, window: int | None, **kwargs: Any) -> Any:
        return real(*args, window=None if window is None else window + n, **kwargs)

    return attention


def heads_interleaved(real: Any, q: Any, *args: Any, **kwargs: Any) -> Any:
    """Head h reads key head h mod K."""
    heads, keys = q.shape[2], args[0].shape[2]
    order = np.arange(heads).reshape(-1, keys).T.reshape(-1)
    sinks = kwargs.pop("sinks")
    sinks = None if sinks is None else sinks[order]
    return real(q[:, :, order], *args, sinks=sinks, **kwargs)[:, :, np.argsort(order)]


def swapped(real: Any, x: Any, *args: Any, activation: Any) -> Any:
    """gate ::2 and up 1::2, the other way round."""

    def other(h: Any) -> Any:
        return activation(h.reshape(*h.shape[:-1], -1, 2)[..., ::-1].reshape(h.shape))

    return real(x, *args, activation=other)


def halves(real: Any, x: Any, *args: Any, activation: Any) -> Any:
    """gate and up as halves instead of taking turns."""

    def other(h: Any) -> Any:
        return activation(jnp.swapaxes(h.reshape(*h.shape[:-1], 2, -1), -1, -2).reshape(h.shape))

    return real(x, *args, activation=other)


# (toy, first part that must differ, op, what is done instead). The sliding layers of gpt-oss and gemma3 are 0 and 2; of
# qwen2-window it is 2.
OPS: dict[str, tuple[str, str, str, Callable[..., Any]]] = {
    "window one wider": ("gpt-oss", "layers.0", "attention", window_plus(1)),
    "window one narrower": ("mistral", "layers.0", "attention", window_plus(-1)),
    "window one wider, Qwen": ("qwen2-window", "layers.2", "attention", window_plus(1)),
    "window one wider, Gemma": ("gemma3", "layers.0", "attention", window_plus(1)),
    "no window": ("gpt-oss", "layers.0", "attention", lambda real, *a, window, **k: real(*a, window=None, **k)),
    "no sinks": ("gpt-oss", "layers.0", "attention", lambda real, *a, sinks, **k: real(*a, sinks=None, **k)),
    "wrong key heads": ("llama2", "layers.0", "attention", heads_interleaved),
    "wrong key heads, gpt-oss": ("gpt-oss", "layers.0", "attention", heads_interleaved),
    "scale of head_dim": ("gemma3", "layers.0", "attention", lambda real, *a, scale, **k: real(*a, scale=0.25, **k)),
    "no concentration": ("gpt-oss", "layers.0", "rope", lambda real, *a, concentration: real(*a)),
    "rope interleaved": ("llama2", "layers.0", "rope", lambda real, *a, **k: real(*a, interleaved=True, **k)),
    "positions from 1": ("gpt-oss", "layers.0", "rope", lambda real, x, at, *a, **k: real(x, at * 2, *a, **k)),
    "norms without + 1": ("gemma3", "layers.0", "rms_norm", lambda real, x, w, *, eps, plus_one: real(x, w, eps=eps)),
    "gate and up swapped": ("gpt-oss", "layers.0", "moe", swapped),
    "gate and up in halves": ("gpt-oss", "layers.0", "moe", halves),
    "gate and up swapped, Qwen": (
        "qwen3-moe", "layers.0", "moe", lambda real, x, c, w, w_in, *a, **k: real(x, c, w, w_in[::-1], *a, **k),
    ),
    "no biases": ("gpt-oss", "layers.0", "matmul", lambda real, x, w, b=None, **k: real(x, w, **k)),
}  # fmt: skip


@pytest.mark.parametrize("mutant", OPS)
@pytest.mark.brief("window one wider", "norms without + 1")  # of experts test_wrong_parts has one
def test_wrong_calls_of_ops(mutant: str) -> None:
    name, where, op, wrong = OPS[mutant]
    assert_caught(name, where, ops=ops(**{op: wrong}))


def test_nothing_is_caught_where_nothing_is_wrong() -> None:
    """The wrapping itself changes nothing."""
    t = toy("gpt-oss")
    right = ops(**{op: lambda real, *a, **k: real(*a, **k) for op in ("attention", "rope", "moe", "matmul")})
    assert_same(taps(model_runs.load(t.folder, ops=right), t.ids), t.taps)


def _softmax_first(self: Any, x: Any, live: Any, ops: Any) -> Any:
    weights, chosen = jax.lax.top_k(ops.softmax(self.router(x, ops), axis=-1), self.chosen)
    return ops.moe(
        x, chosen.astype(jnp.int32), weights, (self.gate_up.get_value(),), (self.gate_up_bias.get_value(),),
        self.down.get_value(), self.down_bias.get_value(), activation=self.activation,
    )  # fmt: skip


def _clamped_on_both_sides(h: Any, *, alpha: float, limit: float) -> Any:
    gate, up = jnp.clip(h[..., ::2], -limit, limit), jnp.clip(h[..., 1::2], -limit, limit)
    return gate * jax.nn.sigmoid(alpha * gate) * (up + 1)


def _without_one(h: Any, *, alpha: float, limit: float) -> Any:
    gate, up = jnp.minimum(h[..., ::2], limit), jnp.clip(h[..., 1::2], -limit, limit)
    return gate * jax.nn.sigmoid(alpha * gate) * up


def _silu(h: Any, *, alpha: float, limit: float) -> Any:
    return gpt_oss_swiglu(h, alpha=1.0, limit=limit)


def _mlp_swapped(self: Any, x: Any, ops: Any) -> Any:
    act = layers.ACTIVATIONS[self.act]
    return self.down_proj(act(self.up_proj(x, ops)) * self.gate_proj(x, ops), ops)


gpt_oss_swiglu = gpt_oss.swiglu
PATCHES: dict[str, tuple[str, str, Any, str, Any]] = {
    "softmax before top-k": ("gpt-oss", "layers.0", gpt_oss.Experts, "__call__", _softmax_first),
    "gate clamped below": ("gpt-oss", "layers.0", gpt_oss, "swiglu", _clamped_on_both_sides),
    "up without + 1": ("gpt-oss", "layers.0", gpt_oss, "swiglu", _without_one),
    "silu without alpha": ("gpt-oss", "layers.0", gpt_oss, "swiglu", _silu),
    "gate and up swapped, MLP": ("llama2", "layers.0", layers.MLP, "__call__", _mlp_swapped),
}


@pytest.mark.parametrize("mutant", PATCHES)
@pytest.mark.brief("silu without alpha")
def test_wrong_parts(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, where, owner, attribute, wrong = PATCHES[mutant]
    monkeypatch.setattr(owner, attribute, wrong)
    assert_caught(name, where)


# (toy, first part that must differ, what is changed in config.json as the model reads it)
CONFIGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "norm_topk_prob": ("qwen3-moe", "layers.0", {"norm_topk_prob": False}),
    "sliding and full layers swapped": (
        "gpt-oss", "layers.0", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}
    ),
    "window a layer early": (
        "qwen2-window", "layers.1", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}
    ),
    "truncated": ("gpt-oss", "layers.0", {"rope_parameters": {"truncate": True}}),
    "not truncated": ("gpt-oss-truncated", "layers.0", {"rope_parameters": {"truncate": False}}),
    "no scaling of rope": ("llama3", "layers.0", {"rope_parameters": {"rope_type": "default"}}),
    "one rope for all": (
        "gemma3", "layers.1", {"rope_parameters": {"full_attention": {"rope_theta": 300.0, "factor": 1.0}}}
    ),
    "eps": ("llama2", "layers.0", {"rms_norm_eps": 1e-2}),
    "no cap": ("gemma3-capped", "logits", {"final_logit_softcapping": None}),
    "other activation": ("llama-linear-biases", "layers.0", {"hidden_act": "silu"}),
    "other gelu": ("gemma3", "layers.0", {"hidden_activation": "gelu"}),
    "one expert fewer": ("gpt-oss", "layers.0", {"num_experts_per_tok": 4}),
}  # fmt: skip


def merged(config: Any, change: dict[str, Any]) -> dict[str, Any]:
    found = dict(config)
    for key, value in change.items():
        found[key] = merged(found[key], value) if isinstance(value, dict) else value
    return found


@pytest.mark.parametrize("mutant", CONFIGS)
@pytest.mark.brief("no scaling of rope", "norm_topk_prob")
def test_every_number_counts(mutant: str) -> None:
    name, where, change = CONFIGS[mutant]

    def load(folder: Any) -> Any:
        checkpoint = model_runs.checkpoint(folder)
        changed = replace(checkpoint, config=merged(checkpoint.config, change))
        return model_runs.engine().load(changed).runtime

    assert_caught(name, where, load)


def test_softmax_after_top_k_in_qwen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen where chosen weights are not normalized; in that toy, layer 1 alone is sparse."""

    def late(self: Any, x: Any, live: Any, ops: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        logits, chosen = jax.lax.top_k(self.router(flat, ops), self.chosen)
        out = ops.moe(
            flat, chosen, ops.softmax(logits), (self.gate_proj.get_value(), self.up_proj.get_value()),
            (None, None), self.down_proj.get_value(), None, activation=self.activation,
        )  # fmt: skip
        return out.reshape(x.shape)

    monkeypatch.setattr(qwen.Experts, "__call__", late)
    assert_caught("qwen3-moe-unnormalized", "layers.1")
