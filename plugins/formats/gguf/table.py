"""What a weight table of a GGUF architecture is: a row for each tensor, with both of its names and its shape in words.

The tables themselves are in `archs`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from plugins.formats.common.sizes import Sizes


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table.

    Attributes:
        logical: Hugging Face name without packing suffixes; `{n}` is the layer.
        leaves: its name in the file; several leaves hold its rows in turns.
        shape: dimensions as attributes of `Sizes`, matrices as [..., out, in].
        packs: may be in a block type, and keeps its dtype when plain. Everything else is written as F32: llama.cpp's
            operators take norms, biases and router weights in no other type.
        rope: rows are reordered within every head, see `packing.Ggml`.
        each: one tensor an expert, `{e}` in `logical`, all of them stacked in the leaf.
        only_if: attribute of `Sizes` that must be true for the tensor to exist.
        scaled: in NVFP4 it may have second scales, a leaf of their own: llama.cpp multiplies by them what comes out.
            Where it does not, it loads them and computes without (`build_ffn` in its models/).
    """

    logical: str
    leaves: tuple[str, ...]
    shape: tuple[str, ...]
    packs: bool = False
    rope: bool = False
    each: bool = False
    only_if: str = ""
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class Arch:
    """An architecture.

    Attributes:
        name: `general.architecture`.
        model_type: of config.json.
        causal_lm: class of transformers.
        layer: the table of one layer; embeddings, last norm and head are the same in all.
        fixed: config.json values that the architecture implies and the file cannot say otherwise.
        norms_plus: norms are stored plus one, see `packing.Ggml`.
        square: llama.cpp takes heads times dims of a head to be the width.
        aliases: other model types whose checkpoints are written as this architecture: same names, same computation.
    """

    name: str
    model_type: str
    causal_lm: str
    layer: tuple[Row, ...]
    fixed: tuple[tuple[str, object], ...] = ()
    norms_plus: bool = False
    square: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def experts(self) -> bool:
        return any("experts" in row.shape or row.each for row in self.layer)

    def writes(self, model_type: object) -> bool:
        return model_type in (self.model_type, *self.aliases)


HEAD = (Row("model.embed_tokens.weight", ("token_embd.weight",), ("vocab", "hidden"), packs=True),)
TAIL = (
    Row("model.norm.weight", ("output_norm.weight",), ("hidden",)),
    Row("lm_head.weight", ("output.weight",), ("vocab", "hidden"), packs=True, only_if="untied", scaled=True),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of a table for one layer of one checkpoint: names and numbers filled in."""

    logical: str
    leaves: tuple[str, ...]
    shape: tuple[int, ...]
    packs: bool
    head: int  # rows that are reordered together, or 0
    lane_dim: int  # dimension that several leaves share in turns, from the end
    plus: bool  # stored plus one
    expert: int | None  # which matrix of the leaf it is, where the leaf stacks them
    scaled: bool  # second scales are applied


def entries(arch: Arch, sizes: Sizes) -> Iterator[Entry]:
    """Every tensor of a checkpoint of `sizes`, in model order."""
    for rows, layers in ((HEAD, 1), (arch.layer, sizes.layers), (TAIL, 1)):
        for n in range(layers):
            for row in rows:
                if row.only_if and not getattr(sizes, row.only_if):
                    continue
                for e in range(sizes.experts) if row.each else (None,):
                    yield Entry(
                        logical=row.logical.format(n=n, e=e),
                        leaves=tuple(leaf.format(n=n) for leaf in row.leaves),
                        shape=tuple(getattr(sizes, d) for d in row.shape),
                        packs=row.packs,
                        head=sizes.head_dim if row.rope else 0,
                        lane_dim=row.shape.index("gate_up") - len(row.shape) if len(row.leaves) > 1 else 0,
                        plus=arch.norms_plus and row.logical.endswith("norm.weight"),
                        expert=e,
                        scaled=row.scaled and not (sizes.mlp_bias and ".mlp." in row.logical),
                    )
