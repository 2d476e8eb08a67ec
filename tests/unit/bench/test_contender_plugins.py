"""The engines that `flow=bench` has: in which forms they read weights, what they lack, and what they do not run."""

import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import plugins.contenders.tinygrad as tinygrad
from pipeline.bench.cell import Prepare
from pipeline.contender import Contender, ContenderHooks, Form
from pipeline.errors import StageError
from pipeline.hooks import misspelt, optional
from plugins.contenders.ctranslate2 import CTranslate2
from plugins.contenders.jax import Jax
from plugins.contenders.llama_cpp import LlamaCpp, LoadedLlamaCpp
from plugins.contenders.onnxruntime_genai import OnnxRuntimeGenai
from plugins.contenders.tinygrad import Tinygrad
from plugins.contenders.torchao import TorchAo
from plugins.contenders.transformers import Transformers

CONF = Path(__file__).parents[3] / "conf"
ALL = (Jax(), Transformers(), LlamaCpp(), TorchAo(), CTranslate2(), OnnxRuntimeGenai(), Tinygrad())
LLAMA, GPT_OSS = {"model_type": "llama"}, {"model_type": "gpt_oss", "num_local_experts": 8}


@pytest.mark.parametrize("contender", ALL, ids=lambda c: type(c).__name__)
def test_every_form_can_be_had(contender: Contender) -> None:
    assert not misspelt(type(contender), Contender)
    quants = {path.stem for path in (CONF / "quant").glob("*.yaml")}
    exports = {path.stem for path in (CONF / "export").glob("*.yaml")}
    forms = {quant: contender.form(quant, LLAMA) for quant in sorted(quants)}
    assert not forms["int8"].why_not
    for quant, form in forms.items():
        if form.why_not:
            assert form == Form(form.quant, form.export, why_not=form.why_not), quant
        else:
            assert form.quant in quants
            assert form.export in exports
            assert not form.own or optional(contender, ContenderHooks, "prepare") is not None
            assert not form.own or (form.quant, form.export) == ("none", "hf"), "it quantizes by itself"
        assert all(how.startswith(("pip install", "clang")) for how in {**contender.needs, **form.needs}.values())


@pytest.mark.parametrize(
    ("contender", "quant", "config", "why"),
    [
        (Transformers(), "int8", GPT_OSS, "experts as stacks"), (Transformers(), "int4", GPT_OSS, "at random"),
        (Transformers(), "int8", {"num_experts": 4}, "experts as stacks"), (Transformers(), "mxfp4", LLAMA, "GPUs"),
        (LlamaCpp(), "nf4", LLAMA, "GGUF has no blocks of nf4"), (TorchAo(), "none", LLAMA, "engines=[transformers]"),
        (CTranslate2(), "int4", LLAMA, "no int4"), (CTranslate2(), "int8", GPT_OSS, "knows no gpt_oss"),
        (OnnxRuntimeGenai(), "nf4", LLAMA, "no nf4"), (OnnxRuntimeGenai(), "none", GPT_OSS, "not with gpt_oss"),
        (Tinygrad(), "mxfp4", LLAMA, "no GGUF blocks of mxfp4"), (Tinygrad(), "none", GPT_OSS, "layers of gpt_oss"),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_run_it_says(contender: Contender, quant: str, config: dict, why: str) -> None:
    assert why in contender.form(quant, config).why_not


@pytest.mark.parametrize(
    ("contender", "quant", "config"),
    [(Transformers(), "none", GPT_OSS), (Transformers(), "nf4", GPT_OSS), (LlamaCpp(), "mxfp4", GPT_OSS)],
)
def test_what_it_runs_it_does_not_refuse(contender: Contender, quant: str, config: dict) -> None:
    assert not contender.form(quant, config).why_not


def test_tinygrad_says_which_release_is_broken_and_what_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinygrad, "version", lambda name: "0.14.0")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    lacking = Tinygrad().needs
    assert all(find_spec(module) is None for module in lacking), "nothing of these is ever there"
    assert [how.split()[0] for how in lacking.values()] == ["pip", "clang,"]
    monkeypatch.setattr(tinygrad, "version", lambda name: "0.13.0")
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/clang")
    assert not Tinygrad().needs


def test_what_was_interrupted_is_prepared_anew(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to/torn").touch()
    with pytest.raises(StageError, match="no prepare"):
        Prepare(LlamaCpp(), tmp_path, "int8", tmp_path / "to")()

    made = SimpleNamespace(prepare=lambda place, own, to: (to / "new").write_text(own))
    assert Prepare(made, tmp_path, "int8", tmp_path / "to")() == {"nbytes": 4}
    assert [file.name for file in (tmp_path / "to").iterdir()] == ["new"]


class Api:
    """llama.cpp's bindings, of a model whose likeliest token is the one after the one given."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.given: list[int] = []

    def __getattr__(self, name: str):
        return lambda *args: self.said.append(name) or 1

    def llama_vocab_n_tokens(self, vocab: object) -> int:
        return 8

    def llama_context_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_batch_init(self, count: int, *_: int) -> SimpleNamespace:
        new = lambda: [0] * count  # noqa: E731
        return SimpleNamespace(token=new(), pos=new(), n_seq_id=new(), logits=new(), seq_id=[[0] for _ in range(count)])

    def llama_decode(self, context: int, batch: SimpleNamespace) -> int:
        self.said.append("llama_decode")
        self.given = batch.token
        return 0

    def llama_get_logits_ith(self, context: int, i: int):
        import ctypes

        logits = np.zeros(8, np.float32)
        logits[(self.given[i] + 1) % 8] = 1.0
        return logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


def test_llama_cpp_keeps_the_cache_of_what_is_asked_twice() -> None:
    api, seen = Api(), []
    loaded = LoadedLlamaCpp(api, Path("x.gguf"), 1)
    for _ in range(2):
        assert loaded.decode([[1], [5]], 3, lambda: seen.append(1)) == [[2, 3, 4], [6, 7, 0]]
    assert len(seen) == 6
    assert api.said.count("llama_init_from_model") == 1
    assert api.said.count("llama_memory_clear") == 1
    loaded.prefill([[1, 2, 3]])
    assert api.said.count("llama_init_from_model") == 2
    assert api.said.count("llama_free") == 1
    assert api.said.count("llama_decode") == 7
