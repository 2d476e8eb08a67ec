"""What running a model on a mesh takes of each device, step by step; known without a framework."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.engine import Usage
from pipeline.mesh import Mesh, Parameter, Placement, Step
from pipeline.planning.layout import spec_of
from pipeline.planning.mesh_costs import PARTIAL_NBYTES, exchanges, held_nbytes
from pipeline.tensors.spec import DTYPE_BITS
from plugins.engine.sizes import LOGITS_NBYTES, bucket, rows

SCORED, SCORES_NBYTES = 256, 64 << 20  # queries, and bytes of their scores, at once (plugins/kernels/attention/xla.py)


def rows_of_each(mesh: Mesh, usage: Usage) -> int:
    """Sequences that each device has at once; those that are generated are padded, those that are scored divide."""
    ways = mesh.ways(mesh.over("batch"))
    return (rows(usage.batch, ways) if usage.generates else usage.batch) // ways


def steps(placement: Placement, usage: Usage, activation_nbytes: int) -> Iterator[Step]:
    """What `usage` comes to.

    Args:
        activation_nbytes: of a number between layers.
    """
    mine = rows_of_each(placement.mesh, usage)
    prompt = max(1, usage.length - usage.tokens) if usage.generates else usage.length
    for name, tokens, predicted in (
        (("prefill", mine * bucket(prompt), mine), ("decode", mine, mine))
        if usage.generates
        else (("score", mine * prompt, mine * prompt),)
    ):
        if tokens:
            p = placement
            sent = exchanges(
                p.mesh, p.parameters, p.specs, p.layouts,
                tokens=tokens, predicted=predicted, activation_nbytes=activation_nbytes,
            )  # fmt: skip
            yield Step(name, tokens, predicted, tuple(sent))


@dataclass(frozen=True, slots=True)
class Activations:
    """What the size of activations depends on, beside weights.

    Attributes:
        nbytes: of a number.
        chosen: experts of a token.
        heads: of queries.
        native: whether attention and experts are native kernels, which write no scores of keys, and what goes into and
            comes out of all chosen experts at once. In jnp it is the other way round.
    """

    nbytes: int
    chosen: int
    heads: int
    native: bool


def temporary_nbytes(placement: Placement, usage: Usage, of: Sequence[Step], has: Activations) -> int:
    """Bytes that a device needs beside weights and cache, at the worst of these steps, about.

    That is in a layer, or where logits are computed. Held to XLA's `memory_analysis` on CPUs (`plugins.bench.mesh`).
    """
    rows = max(1, rows_of_each(placement.mesh, usage))
    heads = 0 if has.native else has.heads // placement.mesh.ways(placement.mesh.over("heads"))
    wide, gathered = _wide(placement, has), _most_gathered(placement)
    kept = wide.kept if usage.generates else 0
    found = 0
    for step in of:
        length = step.tokens // rows
        scores = min(rows * min(length, SCORED) * heads * length * PARTIAL_NBYTES, SCORES_NBYTES)
        attention = gathered.attention + step.tokens * wide.attention * has.nbytes + 2 * scores
        mlp = gathered.mlp + step.tokens * wide.mlp * has.nbytes
        layer = max(attention, mlp) + step.tokens * kept * has.nbytes
        found = max(found, layer, _outside(placement, step, gathered))
    return found


def _outside(placement: Placement, step: Step, gathered: "_Gathered") -> int:
    """Logits, in blocks, and the head. XLA copies logits whose parts of the vocabulary it puts side by side."""
    ways = placement.mesh.ways(placement.mesh.over("vocab"))
    vocab = max((p.shape[0] for p in placement.parameters if p.axes == ("vocab", "embed")), default=0)
    logits = min(step.predicted * PARTIAL_NBYTES * vocab, LOGITS_NBYTES)
    return gathered.outside + max(gathered.copied, logits * (2 if ways > 1 else 1))


class _Wide(NamedTuple):
    """Numbers of a token that are there at once.

    Attributes:
        attention, mlp: what goes in, what products give, and what goes into the last of them; of the widest layer.
        kept: keys and values of all layers, which XLA puts into the cache last of all.
    """

    attention: int
    mlp: int
    kept: int


def _wide(placement: Placement, has: Activations) -> _Wide:
    parts: dict[tuple[str, bool], int] = {}
    hidden = kept = 0
    for parameter in placement.parameters:
        _, _, inner = parameter.name.partition(".layers.")
        mixes = parameter.axes[0] == "experts"
        if not inner or len(parameter.shape) - mixes < 2:  # a norm or a bias
            continue
        *_, rows, columns = placement.layouts[parameter.name].used.local_shape(placement.mesh)
        last = parameter.axes[-2] == "embed"
        many = rows + columns * last
        if mixes:  # in jnp: what the last product gives, in order of experts, of tokens, and weighed
            many = has.chosen * (many if has.native else 3 * rows * last)
        part = inner.partition(".")[0], _attends(parameter)
        parts[part] = parts.get(part, 0) + many
        hidden = max(hidden, rows * last)
        kept += rows * (parameter.axes[0] == "kv_heads")
    attention, mlp = (max((n for (_, a), n in parts.items() if a is of), default=0) for of in (True, False))
    return _Wide(attention + 2 * hidden, mlp + 2 * hidden, kept)


class _Gathered(NamedTuple):
    """Bytes of the largest weight that is gathered for use; XLA lets go of each after its use.

    Attributes:
        attention, mlp: in a layer.
        outside: of all layers: an embedding, a head.
        copied: of those the ones that are gathered as integers, and copied to be floats of 16 bits.
    """

    attention: int
    mlp: int
    outside: int
    copied: int


def _most_gathered(placement: Placement) -> _Gathered:
    found = {"attention": 0, "mlp": 0, "outside": 0, "copied": 0}
    for parameter in placement.parameters:
        layout, spec = placement.layouts[parameter.name], spec_of(parameter, placement.specs)
        assert spec is not None  # or it would not have been laid out
        if any(layout.gathered):
            inside = "attention" if _attends(parameter) else "mlp"
            part = inside if ".layers." in parameter.name else "outside"
            nbytes = held_nbytes(placement.mesh, layout.used, spec)
            found[part] = max(found[part], nbytes)
            if part == "outside" and spec.scheme is None and DTYPE_BITS[spec.dtype] == 16:
                found["copied"] = max(found["copied"], nbytes)
    return _Gathered(**found)


def _attends(parameter: Parameter) -> bool:
    return not {"heads", "kv_heads"}.isdisjoint(parameter.axes)
