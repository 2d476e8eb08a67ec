"""onnxruntime-genai, by its own builder of what transformers reads."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.contender import Form
from pipeline.errors import StageError, short
from plugins.contenders.transformers import INSTALL

MODELS = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text")  # of ours, that it builds for a CPU
OWN = {"none": "fp32", "int8": "int8", "int4": "int4"}  # quant → what its builder is asked for
BUILDER = "onnxruntime_genai.models.builder"


@dataclass(frozen=True)
class OnnxRuntimeGenai:
    """See `pipeline.contender.Contender`."""

    @property
    def needs(self) -> Mapping[str, str]:
        engine = dict.fromkeys(("onnxruntime_genai", "onnx", "onnx_ir"), "pip install onnxruntime-genai onnx onnx_ir")
        return {**engine, **dict.fromkeys(("torch", "transformers"), INSTALL)}

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        if quant not in OWN:
            return Form(quant, why_not=f"onnxruntime-genai's builder makes no {quant} for a CPU; {', '.join(OWN)}")
        if (kind := config.get("model_type")) not in MODELS:
            return Form(quant, why_not=f"onnxruntime-genai is measured with {', '.join(MODELS)}, and not with {kind}")
        return Form(own=OWN[quant])

    def prepare(self, place: Path, own: str, to: Path) -> None:
        """
        Raises:
            StageError: its builder ended otherwise than well.
        """
        with tempfile.TemporaryDirectory() as cache:
            words = ["-i", place, "-o", to, "-p", own, "-e", "cpu", "-c", cache, "--extra_options", "hf_token=false"]
            told = subprocess.run(  # noqa: S603  this interpreter
                [sys.executable, "-m", BUILDER, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True,
            )  # fmt: skip
        print(told.stdout)
        if told.returncode:
            raise StageError(f"{BUILDER} -p {own}: {short(' / '.join(told.stdout.splitlines()[-3:]), 400)}")

    def load(self, place: Path, threads: int) -> "LoadedOnnxRuntimeGenai":
        import onnxruntime_genai as og

        config = og.Config(str(place))
        session = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        # With no token that ends a text none is ended.
        config.overlay(json.dumps({"model": {"eos_token_id": [], "decoder": {"session_options": session}}}))
        nbytes = sum(file.stat().st_size for file in place.glob("*.onnx*"))
        vocab = json.loads((place / "genai_config.json").read_text())["model"]["vocab_size"]
        return LoadedOnnxRuntimeGenai(og.Model(config), vocab, nbytes)

    def versions(self) -> Mapping[str, str]:
        return {"onnxruntime-genai": version("onnxruntime-genai")}


class LoadedOnnxRuntimeGenai:
    """See `pipeline.contender.Loaded`."""

    def __init__(self, model: Any, vocab: int, nbytes: int):
        self._model, self._vocab, self._nbytes = model, vocab, nbytes

    @property
    def device_nbytes(self) -> int:
        return self._nbytes

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.decode(prompts, 1, lambda: None)

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        generator, columns = self._read(prompts, new), []
        for _ in range(new):
            generator.generate_next_token()
            columns.append(generator.get_next_tokens().tolist())
            seen()
        return [list(row) for row in zip(*columns, strict=True)]

    def score(self, ids: Sequence[int]) -> Any:
        return self._read([ids], 1).get_output("logits")[0, :, : self._vocab].astype("float32")

    def _read(self, prompts: Sequence[Sequence[int]], new: int) -> Any:
        """A generator that has read the prompts, with room for `new` tokens."""
        import numpy as np
        import onnxruntime_genai as og

        params = og.GeneratorParams(self._model)
        params.set_search_options(max_length=len(prompts[0]) + new, batch_size=len(prompts), do_sample=False)
        generator = og.Generator(self._model, params)
        generator.append_tokens(np.array([list(ids) for ids in prompts], np.int32))
        return generator
