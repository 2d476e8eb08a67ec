"""Real weights, SmolLM2-135M and Gemma 3 270M: perplexity and text as transformers has them from the same files.

Needs the files (`make models`) in the folder that WEIGHTMILL_MODELS names; nothing is downloaded here. Both read the
values that the GGUF file's types decode to, and compute in fp32.
"""

import gc
import math
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pipeline
from pipeline.engine import Windows

MODELS = Path(os.environ.get("WEIGHTMILL_MODELS", ".models")).absolute()
TEXTS = Path(__file__).parents[2] / "plugins/texts"
SMOLLM2, GEMMA = "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"
WINDOW = 256
TOKENS = int(os.environ.get("WEIGHTMILL_TOKENS", "2048"))  # of each text; a multiple of WINDOW
pytestmark = [pytest.mark.download, pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True, scope="module")
def _let_go():
    yield
    ours.cache_clear()
    theirs.cache_clear()
    gc.collect()


def needed(name: str) -> None:
    if not (MODELS / name).is_file():
        pytest.skip(f"{name} is not in WEIGHTMILL_MODELS")


@cache
def ours(name: str) -> Any:
    """The file as it is: what is packed stays packed on the device, and fp32 stays fp32."""
    overrides = ["stages.decode.dtype=keep", "engine.dtype=f32", "engine.programs=null", "dask.memory=4GiB"]
    return pipeline.load_model(MODELS / name, overrides=overrides)


@cache
def theirs(name: str) -> tuple[Any, Any]:
    """transformers' own reading of the file, and its tokenizer."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(MODELS, gguf_file=name, dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(MODELS, gguf_file=name)


def nll_of(model: Any, ids: list[int]) -> tuple[float, int]:
    """transformers' mean negative log likelihood, over windows without overlap; and how many tokens it is of."""
    import torch

    total, scored = 0.0, 0
    for at in range(0, len(ids), WINDOW):
        row = torch.tensor([ids[at : at + WINDOW]])
        if row.shape[1] < 2:
            break
        with torch.inference_mode():
            found = torch.log_softmax(model(row).logits[0, :-1], dim=-1).gather(1, row[0, 1:, None])
        total -= float(found.double().sum())
        scored += found.shape[0]
    return total / scored, scored


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [(SMOLLM2, "sotu_eval.txt", TOKENS), (SMOLLM2, "moby_eval.txt", TOKENS), (GEMMA, "sotu_eval.txt", 512)],
)
@pytest.mark.brief(when=lambda text: text == "moby_eval.txt")  # what Gemma says, below
def test_perplexity_is_that_of_transformers(name: str, text: str, tokens: int) -> None:
    needed(name)
    model = ours(name)
    written = (TEXTS / text).read_text()
    ids = model.tokenizer.encode(written)[:tokens]
    reference, tokenizer = theirs(name)
    assert ids == tokenizer(written[: 8 * tokens], add_special_tokens=False)["input_ids"][:tokens]
    nll, scored = nll_of(reference, ids)
    score = model.score(ids, Windows(window=WINDOW, batch=4))
    print(f"\n{name}, {text}: {math.exp(score.nll):.4f}, transformers {math.exp(nll):.4f}, {scored} tokens")
    assert score.scored == scored == tokens - tokens // WINDOW
    assert math.exp(score.nll) == pytest.approx(math.exp(nll), rel=1e-3)
    assert 5 < math.exp(nll) < 100  # it knows English


@pytest.mark.parametrize(
    ("asked", "inside"),
    [
        ("What is the capital of France?", "Paris"),
        ("What is 2 + 2?", "4"),
        ("Name three colours.", "red"),
    ],
)
@pytest.mark.brief(1)
def test_smollm2_answers_as_with_transformers(asked: str, inside: str) -> None:
    needed(SMOLLM2)
    import torch

    reference, tokenizer = theirs(SMOLLM2)
    said = [{"role": "user", "content": asked}]
    ids = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        out = reference.generate(**ids, do_sample=False, max_new_tokens=24)[0, ids["input_ids"].shape[1] :].tolist()
    found = ours(SMOLLM2).generate(asked, max_tokens=24)
    print(f"\n{asked} {found.text!r}")
    assert ours(SMOLLM2).encode(asked) == ids["input_ids"][0].tolist()
    assert list(found.completion.tokens) == out
    assert inside.lower() in found.text.lower()


@pytest.mark.parametrize("begun", ["Monday, Tuesday, Wednesday,", "The capital of France is"])
@pytest.mark.brief(1)
def test_gemma_continues_as_with_transformers(begun: str) -> None:
    needed(GEMMA)
    import torch

    reference, tokenizer = theirs(GEMMA)
    ids = tokenizer(begun, return_tensors="pt")
    with torch.inference_mode():
        out = reference.generate(**ids, do_sample=False, max_new_tokens=12)[0, ids["input_ids"].shape[1] :].tolist()
    found = ours(GEMMA).generate(begun, chat=False, max_tokens=12)
    print(f"\n{begun}{found.text}")
    assert ours(GEMMA).encode(begun, chat=False) == ids["input_ids"][0].tolist()
    assert list(found.completion.tokens) == out


def test_what_is_packed_stays_packed() -> None:
    """Q4_1 on the device is Q4_1: 4 bits and two halves for every 32 weights."""
    needed(SMOLLM2)
    runtime = ours(SMOLLM2).runtime
    packed = 30 * (2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576)
    plain = 4 * 576 * 61
    embedded = 49152 * 576 * 34 // 32  # Q8_0
    assert runtime.device_nbytes == packed * 20 // 32 + plain + embedded
    logits = runtime.forward(np.asarray([[504, 3575, 282, 4649, 314]], np.int32), np.arange(5, dtype=np.int32)[None])
    assert int(np.argmax(logits[0, -1])) == 7042  # Paris
