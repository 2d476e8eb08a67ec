"""torchao: its own weight-only quantization of a transformers model, written once and read back by transformers."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.contender import Form
from plugins.contenders.transformers import INSTALL, LoadedTransformers, pretrained

GROUP = (
    32  # columns that share a scale, as GGUF's 4-bit blocks have them; widths of small models are no more's multiples
)
QUANTS = ("int8", "int4")


@dataclass(frozen=True)
class TorchAo:
    """See `pipeline.contender.Contender`.

    Attributes:
        compiled: by `torch.compile`, which torchao is made for and which takes its time at the first call.
    """

    compiled: bool = False

    @property
    def needs(self) -> Mapping[str, str]:
        return {**dict.fromkeys(("torch", "transformers"), INSTALL), "torchao": "pip install torchao"}

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        if quant not in QUANTS:
            instead = "; without quantization it is engines=[transformers]" if quant == "none" else ""
            return Form(quant, why_not=f"torchao multiplies with {' and '.join(QUANTS)} on a CPU{instead}")
        return Form(own=quant)

    def prepare(self, place: Path, own: str, to: Path) -> None:
        import torch
        from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup
        from transformers import TorchAoConfig

        eight = own == "int8"
        kind = Int8WeightOnlyConfig() if eight else IntxWeightOnlyConfig(torch.int4, granularity=PerGroup(GROUP))
        pretrained(place, dtype="auto", quantization_config=TorchAoConfig(kind)).save_pretrained(to)

    def load(self, place: Path, threads: int) -> LoadedTransformers:
        import torch

        torch.set_num_threads(threads)
        model = pretrained(place, dtype="auto")
        return LoadedTransformers(model, torch.compile(model) if self.compiled else model)

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("torchao", "torch", "transformers")}
