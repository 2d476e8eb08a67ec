"""Parameters of the layers that families share, as plans know them: `plugins.models.common.layers` without a framework.

Layer by layer this says what the modules there declare, and in what units a dimension may be divided, which only
dividing needs to know. That both say the same is tested for every family.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from pipeline.mesh import Parameter
from plugins.models.common.shapes import AttentionShape

Table: TypeAlias = Iterator[Parameter]

PRE_NORMS: Final = ("input_layernorm", "post_attention_layernorm")
PAIR: Final = 2  # gate and up take turns along a dimension


class Dim(NamedTuple):
    """A dimension: how many, its logical axis, and elements that are never cut apart."""

    size: int
    axis: str
    unit: int = 1


def tensor(name: str, *dims: Dim, places: int = 1) -> Parameter:
    """The parameter that is one tensor."""
    return Parameter((name,), *_dims(dims), stack=False, places=places)


def stacked(names: Sequence[str], *dims: Dim) -> Parameter:
    """Tensors of one shape along a new first dimension, which is the first of `dims`."""
    return Parameter(tuple(names), *_dims(dims), stack=True)


def _dims(dims: Sequence[Dim]) -> tuple[tuple[int, ...], tuple[str, ...], tuple[int, ...]]:
    return tuple(d.size for d in dims), tuple(d.axis for d in dims), tuple(d.unit for d in dims)


def embed(hidden: int) -> Dim:
    return Dim(hidden, "embed")


def norms(where: str, names: Sequence[str], hidden: int) -> Table:
    """Norms of hidden states."""
    for name in names:
        yield tensor(f"{where}.{name}.weight", embed(hidden))


def linear(name: str, out: Dim, into: Dim, *, bias: bool = False, places: int = 1) -> Table:
    """As `layers.Linear`."""
    yield tensor(f"{name}.weight", out, into, places=places)
    if bias:
        yield tensor(f"{name}.bias", out)


def attention(where: str, s: AttentionShape) -> Table:
    """As `layers.Attention`."""
    hidden, d = embed(s.hidden), s.head_dim
    q, kv = Dim(s.heads * d, "heads", d), Dim(s.kv_heads * d, "kv_heads", d)
    yield from linear(f"{where}.q_proj", q, hidden, bias=s.bias)
    yield from linear(f"{where}.k_proj", kv, hidden, bias=s.bias)
    yield from linear(f"{where}.v_proj", kv, hidden, bias=s.bias)
    yield from linear(f"{where}.o_proj", hidden, q, bias=s.out_bias)
    if s.qk_norm is not None:
        yield tensor(f"{where}.q_norm.weight", Dim(d, "head"))
        yield tensor(f"{where}.k_norm.weight", Dim(d, "head"))
    if s.sinks:
        yield tensor(f"{where}.sinks", Dim(s.heads, "heads"))


def mlp(where: str, hidden: int, inter: int, *, bias: bool = False) -> Table:
    """As `layers.MLP`."""
    yield from linear(f"{where}.gate_proj", Dim(inter, "mlp"), embed(hidden), bias=bias)
    yield from linear(f"{where}.up_proj", Dim(inter, "mlp"), embed(hidden), bias=bias)
    yield from linear(f"{where}.down_proj", embed(hidden), Dim(inter, "mlp"), bias=bias)


def decoder(
    block: Callable[[str, int], Table], layers: int, vocab: int, hidden: int, *, tied: bool
) -> tuple[Parameter, ...]:
    """As `plugins.models.common.decoder.Decoder`; `block(where, i)` gives what layer i has under `where`."""
    words = Dim(vocab, "vocab"), embed(hidden)
    return (
        tensor("model.embed_tokens.weight", *words),
        *(p for i in range(layers) for p in block(f"model.layers.{i}", i)),
        *norms("model", ("norm",), hidden),
        *(() if tied else (tensor("lm_head.weight", *words),)),
    )
