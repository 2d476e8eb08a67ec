"""What tensors take: in the source, as written, and the one against the other."""

from pipeline.hooks import optional
from pipeline.planning.wiring import Node, Plan, store_of
from pipeline.stage import Checkpoint, WorkHooks

PACKED, ALIKE = 0.99, 0.01  # of bf16: below it a source is packed; sizes that differ by less are one


def nbytes_of(node: Node) -> int:
    """What the tensors that a stage gives take: as written, where it says so, or as they are in its store."""
    written: int | None = optional(node.work, WorkHooks, "nbytes")
    store = store_of(node)
    specs = store.specs.values() if store is not None else ()
    return sum(s.nbytes for s in specs) if written is None else written


def source_nbytes(plan: Plan) -> int:
    """What the tensors take in the files that the first checkpoint is read from."""
    given = (n.result for n in plan.nodes.values() if isinstance(n.result, Checkpoint))
    return sum(next((c.stored for c in given), {}).values())


def against_source(source: int, bf16: int, out: int) -> str:
    """How what is written compares with a source that is packed; empty where that is plain."""
    if not 0 < source < PACKED * bf16 or not out:
        return ""
    if abs(out / source - 1) < ALIKE:
        return "as large as the source"
    return (
        f"{out / source:.2f}× larger than the source"
        if out > source
        else f"{source / out:.2f}× smaller than the source"
    )


def against_bf16(ratio: float) -> str:
    """How it compares with bf16, which takes `ratio` times as much; 0: nothing was written."""
    if abs(ratio - 1) < ALIKE:
        return "as large"
    return f"{ratio:.2f}× smaller" if ratio > 1 or not ratio else f"{1 / ratio:.2f}× larger"
