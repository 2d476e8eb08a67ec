"""llama.cpp, by the bindings of llama-cpp-python: the package, or the sources and the library that `make peers` built.

Only the plain bindings are used, so that batches are ours and nothing is sampled.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any

from pipeline.contender import Form
from pipeline.errors import StageError

PACKAGE = "llama_cpp"
PEERS = Path(__file__).parents[2] / ".peers"
FORMS = {  # options of ours → blocks of GGUF with as many bits
    "none": "none", "int8": "q8_0", "int4": "q4_0", "q8_0": "q8_0", "q4_0": "q4_0", "q4_1": "q4_1", "mxfp4": "mxfp4",
    "q2_k": "q2_k", "q3_k": "q3_k", "q3_k_m": "q3_k_m", "q3_k_l": "q3_k_l", "q4_k": "q4_k", "q4_k_s": "q4_k_s",
    "q4_k_m": "q4_k_m", "q5_k": "q5_k", "q5_k_m": "q5_k_m", "q6_k": "q6_k", "iq4_nl": "iq4_nl",
}  # fmt: skip
LIBRARIES = ("libggml-base.so", "libggml-cpu.so", "libggml.so")  # in the order in which they need each other
UBATCH = 512  # tokens that are computed at once


@dataclass(frozen=True)
class LlamaCpp:
    """See `pipeline.contender.Contender`.

    Attributes:
        peers: folder with what `make peers` built; None: that of this checkout.
    """

    peers: str | None = None

    @property
    def needs(self) -> Mapping[str, str]:
        there = _installed() or _built(self._peers) is not None
        return {} if there else {PACKAGE: "pip install llama-cpp-python, or make peers"}

    def form(self, quant: str, config: Mapping[str, Any]) -> Form:
        if quant not in FORMS:
            return Form(quant, "gguf", why_not=f"GGUF has no blocks of {quant}; llama.cpp runs {', '.join(FORMS)}")
        return Form(FORMS[quant], "gguf")

    def load(self, place: Path, threads: int) -> "LoadedLlamaCpp":
        (file, *_) = sorted(place.glob("*.gguf"))
        return LoadedLlamaCpp(bindings(self._peers), file, threads)

    def versions(self) -> Mapping[str, str]:
        built = _built(self._peers)
        return {"llama-cpp-python": built[0].name.rpartition("-")[2] if built else _installed()}

    @property
    def _peers(self) -> Path:
        return PEERS if self.peers is None else Path(self.peers).expanduser()


def _installed() -> str:
    """The version of the package; empty: there is none."""
    try:
        return version("llama-cpp-python")
    except PackageNotFoundError:
        return ""


def _built(peers: Path) -> tuple[Path, Path] | None:
    """The sources of the bindings, and the folder of the library, where there is no package."""
    sources, libraries = sorted(peers.glob("llama_cpp_python-*/")), peers / "llama.cpp/bin"
    if _installed() or not sources or not (libraries / "libllama.so").is_file():
        return None
    return sources[-1], libraries


def bindings(peers: Path) -> Any:
    """The module `llama_cpp.llama_cpp`. What is around it, which has needs of its own, is not run."""
    built = _built(peers)
    if built is None:
        import llama_cpp

        return llama_cpp
    sources, libraries = built
    for name in LIBRARIES:  # which were built to be found elsewhere
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)
    os.environ["LLAMA_CPP_LIB_PATH"] = str(libraries)
    spec = ModuleSpec(PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(sources / PACKAGE)]
    sys.modules[PACKAGE] = module_from_spec(spec)
    from llama_cpp import llama_cpp

    return llama_cpp


class LoadedLlamaCpp:
    """See `pipeline.contender.Loaded`."""

    def __init__(self, api: Any, file: Path, threads: int):
        """
        Raises:
            StageError: llama.cpp does not read the file.
        """
        self._api, self._threads = api, threads
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(str(file).encode(), api.llama_model_default_params())
        if not self._model:
            raise StageError(f"{file}: llama.cpp does not read it; its log says why")
        self._context, self._room = None, (0, 0)
        self._vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))

    @property
    def device_nbytes(self) -> int:
        return int(self._api.llama_model_size(self._model))

    def prefill(self, prompts: Sequence[Sequence[int]]) -> None:
        self.decode(prompts, 1, lambda: None)

    def decode(self, prompts: Sequence[Sequence[int]], new: int, seen: Callable[[], None]) -> Sequence[Sequence[int]]:
        length = len(prompts[0])
        self._make_room(len(prompts), length + new)
        tokens = [(t, i, row, i == length - 1) for row, ids in enumerate(prompts) for i, t in enumerate(ids)]
        columns = []
        for step in range(new):
            columns.append([int(logits.argmax()) for logits in self._computed(tokens)])
            seen()
            tokens = [(t, length + step, row, True) for row, t in enumerate(columns[-1])]
        return [list(row) for row in zip(*columns, strict=True)]

    def score(self, ids: Sequence[int]) -> Any:
        import numpy as np

        self._make_room(1, len(ids))
        return np.stack(self._computed([(t, i, 0, True) for i, t in enumerate(ids)]))

    def _make_room(self, rows: int, length: int) -> None:
        """An empty cache for so many sequences of so many tokens; that of what was asked before is emptied, as
        `llama-bench` does."""
        if self._room == (rows, length):
            self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
            return
        if self._context:
            self._api.llama_free(self._context)
        params = self._api.llama_context_default_params()
        params.n_ctx, params.n_seq_max = rows * _rounded(length), rows
        params.n_batch, params.n_ubatch = rows * _rounded(length), UBATCH
        params.n_threads = params.n_threads_batch = self._threads
        self._context, self._room = self._api.llama_init_from_model(self._model, params), (rows, length)
        if not self._context:
            raise StageError(f"llama.cpp makes no context for {rows} × {length} tokens; its log says why")

    def _computed(self, tokens: Sequence[tuple[int, int, int, bool]]) -> list[Any]:
        """Logits [V] float32 of those of `tokens` (id, position, row, wanted) that are wanted, until the next call."""
        import numpy as np

        batch = self._api.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            for i, (token, position, row, wanted) in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
                batch.seq_id[i][0], batch.logits[i] = row, wanted
            if code := self._api.llama_decode(self._context, batch):
                raise StageError(f"llama_decode of {len(tokens)} tokens gave {code}; its log says why")
            at = [i for i, (*_, wanted) in enumerate(tokens) if wanted]
            found = [self._api.llama_get_logits_ith(self._context, i) for i in at]
            return [np.ctypeslib.as_array(logits, (self._vocab,)) for logits in found]
        finally:
            self._api.llama_batch_free(batch)


def _rounded(length: int) -> int:
    """What llama.cpp rounds the length of a cache up to."""
    return -(-length // 256) * 256
