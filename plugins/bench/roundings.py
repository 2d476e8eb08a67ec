"""Programs of others that round weights: peers of `flow=bench_quality`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.bench.quality import Given, Rounded
from pipeline.errors import StageError
from pipeline.stage import Checkpoint
from plugins.bench.converters import llama_quantize
from plugins.contenders.llama_cpp import LlamaCpp
from plugins.formats.gguf.archs import ARCHS
from plugins.formats.gguf.config import sizes_of
from plugins.formats.gguf.table import Arch, entries

KINDS = {  # quant options as llama.h has them (`enum llama_ftype`)
    "q2_k": 10, "q3_k_m": 12, "q3_k_l": 13, "q4_k_s": 14, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18,
}  # fmt: skip
FILE = "model.gguf"  # what an export is called there
WHOLE = 4  # bytes of a value in the file that it is given


@dataclass(frozen=True)
class LlamaQuantize:
    """See `pipeline.bench.quality.Rounder`: what `llama-quantize` of llama.cpp calls. Embedding and head stay in fp32.

    Attributes:
        quant: a mix, as we call it.
        importance: with the mean squares of our own calibration as its importance matrix.
    """

    quant: str
    importance: bool = False

    @property
    def needs(self) -> Mapping[str, str]:
        return LlamaCpp().needs

    @property
    def reads(self) -> str | None:
        return "gguf"

    def why_not(self, checkpoint: Checkpoint) -> str:
        if self.quant not in KINDS:
            return f"of mixes it has {', '.join(KINDS)}"
        if _arch(checkpoint) is None:
            return f"no names of GGUF are known of {checkpoint.config.get('model_type')}"
        return "no statistics: calibrate=none reads no text" if self.importance and not checkpoint.statistics else ""

    def rounded(self, checkpoint: Checkpoint, names: Sequence[str], given: Given, place: Path) -> Rounded:
        assert given.source is not None
        assert checkpoint.opener is not None
        out = place / FILE
        importance = self._importance(checkpoint, names) if self.importance else {}
        llama_quantize(KINDS[self.quant], given.source / FILE, out, importance, plain_ends=True)
        found = checkpoint.opener(out)
        sizes = {n: s.size for n, s in checkpoint.store.specs.items()}
        if strange := [n for n in names if not found.stored.get(n, WHOLE * sizes[n]) < WHOLE * sizes[n]]:
            raise StageError(f"llama-quantize did not round {strange[0]}")
        return Rounded(found, {n: found.stored[n] for n in names})  # types that are no scheme here are read as values

    def _importance(self, checkpoint: Checkpoint, names: Sequence[str]) -> Mapping[str, Any]:
        """Tensor of the file → mean squares of its inputs, expert after expert."""
        assert checkpoint.statistics is not None
        arch, found = _arch(checkpoint), dict[str, list[Any]]()
        assert arch is not None
        for entry in entries(arch, sizes_of(checkpoint.config)):
            if entry.logical in names and (known := checkpoint.statistics.of(entry.logical)) is not None:
                for leaf in entry.leaves:
                    found.setdefault(leaf, []).append(np.ravel(known.mean_square))
        return {leaf: np.concatenate(parts).astype(np.float32) for leaf, parts in found.items()}


def _arch(checkpoint: Checkpoint) -> Arch | None:
    return next((a for a in ARCHS.values() if a.writes(checkpoint.config.get("model_type"))), None)
