"""CTranslate2, by its own converter of what transformers reads."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.contender import Form
from pipeline.errors import StageError
from plugins.contenders.transformers import INSTALL

MODELS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma3_text")  # of ours, that it converts
OWN = {"none": "float32", "int8": "int8"}  # quant → what its converter is asked for; bf16 becomes float32 on most CPUs


@dataclass(frozen=True)
class CTranslate2:
    """See `pipeline.contender.Contender`."""

    @property
    def needs(self) -> Mapping[str, str]:
        converter = dict.fromkeys(("torch", "transformers"), INSTALL)
        return {"ctranslate2": "pip install ctranslate2", **converter}

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        if quant not in OWN:
            return Form(quant, why_not=f"CTranslate2 multiplies with no {quant} on a CPU; with {', '.join(OWN)}")
        if (kind := config.get("model_type")) not in MODELS:
            return Form(quant, why_not=f"CTranslate2's converter knows no {kind}; {', '.join(MODELS)}")
        return Form(own=OWN[quant])

    def prepare(self, place: Path, own: str, to: Path) -> None:
        from ctranslate2.converters import TransformersConverter

        TransformersConverter(str(place)).convert(str(to), quantization=own, force=True)

    def load(self, place: Path, threads: int) -> "LoadedCTranslate2":
        from ctranslate2 import Generator

        generator = Generator(str(place), device="cpu", inter_threads=1, intra_threads=threads)
        return LoadedCTranslate2(
            generator, json.loads((place / "vocabulary.json").read_text()), (place / "model.bin").stat().st_size
        )

    def versions(self) -> Mapping[str, str]:
        return {"ctranslate2": version("ctranslate2")}


class LoadedCTranslate2:
    """See `pipeline.contender.Loaded`."""

    def __init__(self, generator: Any, vocabulary: Sequence[str], nbytes: int):
        """
        Args:
            vocabulary: the text of each id, by which prompts are given.
            nbytes: of the weights.
        """
        self._generator, self._vocabulary, self._nbytes = generator, vocabulary, nbytes

    @property
    def device_nbytes(self) -> int:
        return self._nbytes

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.decode(prompts, 1, lambda: None)

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        left = [len(prompts)] * new  # sequences that have no token of a step yet

        def told(step: Any) -> bool:
            left[step.step] -= 1
            if not left[step.step]:
                seen()
            return False

        found = self._generator.generate_batch(
            [[self._vocabulary[i] for i in ids] for ids in prompts], max_length=new, min_length=new, sampling_topk=1,
            include_prompt_in_result=False, end_token=[], callback=told,
        )  # fmt: skip
        rows: list[list[int]] = [each.sequences_ids[0] for each in found]
        if any(len(row) != new for row in rows):
            raise StageError(f"CTranslate2 made {min(map(len, rows))} tokens of {new}")
        return rows

    def score(self, ids: Sequence[int]) -> Any:
        import numpy as np
        from ctranslate2 import DataType

        logits = self._generator.forward_batch([list(ids)]).to(DataType.float32)
        return np.array(logits)[0, :, : len(self._vocabulary)]
