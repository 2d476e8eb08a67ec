"""What running a model on a mesh takes of each device, step by step; known without a framework."""

from collections.abc import Iterator, Sequence

from pipeline.engine import Usage
from pipeline.mesh import Mesh, Placement, Step
from pipeline.planning.layout import spec_of
from pipeline.planning.mesh_costs import PARTIAL_NBYTES, exchanges, held_nbytes
from plugins.engine.sizes import LOGITS_NBYTES, bucket, rows


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


def gathered_nbytes(placement: Placement) -> int:
    """Bytes of weights that a device has for use beside those that lie there: of one layer, and of what is in none."""
    layers: dict[str, int] = {}
    for parameter in placement.parameters:
        layout, spec = placement.layouts[parameter.name], spec_of(parameter, placement.specs)
        assert spec is not None  # or it would not have been laid out
        used, held = (held_nbytes(placement.mesh, one, spec) for one in (layout.used, layout))
        _, _, inner = parameter.name.partition(".layers.")
        layer = inner.partition(".")[0]
        layers[layer] = layers.get(layer, 0) + used - held
    return layers.pop("", 0) + max(layers.values(), default=0)


def temporary_nbytes(placement: Placement, of: Sequence[Step], wide: int, vocab: int) -> int:
    """Bytes that a device needs beside weights and cache, at the worst of these steps, about.

    Args:
        wide: numbers that go in and out of the widest matrix, of a token.
        vocab: numbers of the logits, of a token. They are computed in blocks.
    """
    activations = max((s.tokens for s in of), default=0) * PARTIAL_NBYTES * wide
    logits = max((s.predicted for s in of), default=0) * PARTIAL_NBYTES * vocab
    return gathered_nbytes(placement) + activations + min(logits, LOGITS_NBYTES)
