"""tinygrad, by its own reader of GGUF files and its own transformer (`tinygrad.llm`), on the CPU."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipeline.contender import Form

MODULE = "tinygrad"
BROKEN = "0.14.0"  # whose wheel lacks tinygrad.llm.kernels, which tinygrad.llm.model imports
MODELS = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe")  # whose layers its transformer has
FORMS = {"none": "none", "int8": "q8_0", "int4": "q4_0", "q8_0": "q8_0", "q4_0": "q4_0", "q4_1": "q4_1"}
CHUNK = 32  # tokens of a prompt that its own `generate` reads at once


@dataclass(frozen=True)
class Tinygrad:
    """See `pipeline.contender.Contender`.

    Attributes:
        realize: unpack the weights to float16 when they are loaded, and not again with every token.
    """

    realize: bool = False

    @property
    def needs(self) -> Mapping[str, str]:
        try:
            found = version(MODULE)
        except PackageNotFoundError:
            return {MODULE: "pip install 'tinygrad!=0.14.0'"}
        lacking = {}
        if found == BROKEN:
            lacking["tinygrad, whole"] = f"pip install 'tinygrad!=0.14.0', as {BROKEN} lacks tinygrad.llm.kernels"
        if shutil.which(compiler := os.environ.get("CC", "clang")) is None:
            lacking["a compiler"] = f"clang, by which it compiles for CPUs: apt install clang ({compiler} is not there)"
        return lacking

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        if quant not in FORMS:
            return Form(quant, "gguf", why_not=f"tinygrad reads no GGUF blocks of {quant}; {', '.join(FORMS)}")
        if (kind := config.get("model_type")) not in MODELS:
            return Form(quant, "gguf", why_not=f"tinygrad's transformer has not the layers of {kind}")
        return Form(FORMS[quant], "gguf")

    def load(self, place: Path, threads: int) -> "LoadedTinygrad":
        os.environ |= {"DEV": "CPU", "CPU_COUNT": str(threads)}  # it looks once, when it is imported
        from tinygrad.llm.model import Transformer

        (file, *_) = sorted(place.glob("*.gguf"))
        return LoadedTinygrad(Transformer.from_gguf(file, realize=self.realize)[0], file.stat().st_size)

    def versions(self) -> Mapping[str, str]:
        return {MODULE: version(MODULE)}


class LoadedTinygrad:
    """See `pipeline.contender.Loaded`."""

    def __init__(self, model: Any, nbytes: int):
        """
        Args:
            nbytes: of the weights, as the file has them.
        """
        self._model, self._nbytes, self._room = model, nbytes, (0, 0)

    @property
    def device_nbytes(self) -> int:
        return self._nbytes

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.decode(prompts, 1, lambda: None)

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        """As its own `Transformer.generate`, which has one sequence: the prompt in chunks, then a token at a time."""
        from tinygrad import Tensor, UOp

        length, room = len(prompts[0]), len(prompts[0]) + new
        self._make_room(len(prompts), room)
        given = Tensor([[*ids, *[0] * new] for ids in prompts], dtype="int32")
        start, count = UOp.variable("start_pos", 0, room - 1), UOp.variable("toks", 1, CHUNK)
        cold, at, out = Tensor([0.0]), 0, None
        columns: list[list[int]] = []
        while len(columns) < new:
            here, many = start.bind(at), min(CHUNK, length - at)
            # A concrete shape for single tokens, by which it takes the program for those.
            part = out if at >= length else given[:, here : here + (many if many == 1 else count.bind(many))]
            out = self._model(part, here, cold).realize()
            at += max(many, 1)
            if at >= length:
                columns.append(out[:, 0].tolist())
                seen()
        return [list(row) for row in zip(*columns, strict=True)]

    def score(self, ids: Sequence[int]) -> Any:
        from tinygrad import Tensor

        self._make_room(1, len(ids))
        x = self._model.token_embd(Tensor([list(ids)], dtype="int32")).float()
        for block in self._model.blk:
            x = block(x, 0)
        return self._model.output(self._model.output_norm(x)).float().numpy()[0]

    def _make_room(self, rows: int, room: int) -> None:
        """An empty cache for so many sequences and tokens. What was asked before keeps its cache and programs."""
        from tinygrad import TinyJit

        if self._room == (rows, room):
            return
        self._room, model = (rows, room), self._model
        for block in model.blk:
            block.__dict__.pop("cache_kv", None)
            block.__dict__.pop("freqs_cis", None)
            block.config = replace(block.config, max_context=room)
        model.max_context = room
        model.prefill_jit, model.rollout_jit = TinyJit(model.forward), TinyJit(model.forward)
