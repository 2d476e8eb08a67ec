"""Published vocabularies: SmolLM2's (GGUF), gpt-oss's and Mistral's, against what their own programs say.

Needs the files in the folder that WEIGHTMILL_MODELS names (`make models`); nothing is downloaded here.
"""

import os
from pathlib import Path

import pytest

from pipeline.stage import Context
from plugins.formats.gguf.file import GgufContainer as Container
from plugins.formats.gguf.model import GgufDialect as Dialect
from plugins.tokenizers.auto import Auto
from plugins.tokenizers.load import load_tokenizer
from stages.load import Load
from tests.cases import chats
from tests.cases import tokenizers as cases

FOLDER = Path(os.environ.get("WEIGHTMILL_MODELS", ".models")).absolute()
SMOLLM2, O200K = "SmolLM2-135M-Instruct.Q4_1.gguf", "o200k_base.tiktoken"
TEKKEN, MISTRAL = "tekken_240911.json", "tokenizer.model.v1"
pytestmark = pytest.mark.download
TEXTS = (
    "The capital of France is Paris.",
    "Hello   world\n\n 12345 + 67 = don't I'LL",
    "naïve café — 日本語 🦙🦙 x\t\ty",
)
# By llama-cpp-python 0.3.36 (SmolLM2, the first text), tiktoken 0.14.0 and mistral-common 1.13.1.
IDS = {
    SMOLLM2: ("504 3575 282 4649 314 7042 30",),
    O200K: (
        "976 9029 328 10128 382 12650 13",
        "13225 256 2375 279 220 7633 2548 659 220 5462 314 4128 3413 7454",
        "1503 9954 737 30469 2733 17428 40909 9552 99 247 4103 99 247 1215 197 32013",
    ),
    TEKKEN: (
        "1784 8961 1307 5498 1395 6993 1046",
        "22177 1256 4304 1267 1032 1049 1050 1051 1052 1053 1867 1032 1054 1055 1376 2607 2405 1362 1039 23947",
        "2302 7884 1672 35858 2251 30367 15199 119685 1166 1153 1240 1159 1166 1153 2460 1009 67002",
    ),
    MISTRAL: (
        "415 5565 302 4843 349 5465 28723",
        "22557 259 1526 13 13 28705 28740 28750 28770 28781 28782 648 28705 28784 28787 327 949 28742 28707 315 28742 "
        "5292",
        "1879 28920 333 28345 1040 28705 29142 29119 30321 28705 243 162 169 156 243 162 169 156 1318 12 12 28724",
    ),
}
# vocab_size, bos, eos
ABOUT = {
    SMOLLM2: (49152, 1, (2, 4, 0)),  # by llama_vocab_is_eog of llama.cpp 0.3.36
    O200K: (201088, 199998, (200002, 199999, 200012)),
    TEKKEN: (131072, 1, (2,)),
    MISTRAL: (32000, 1, (2,)),
}


def needs(name):
    if not (FOLDER / name).is_file():
        pytest.skip(f"{name} is not in WEIGHTMILL_MODELS")
    return FOLDER / name


def load(name):
    path = needs(name)
    if name == SMOLLM2:
        return Auto().load(Load(str(path), (Container(),), (Dialect(),)).run(Context(Path())))
    if name == O200K:
        return load_tokenizer({}, {"model_type": "gpt_oss"}, vocabulary=str(FOLDER))
    return load_tokenizer({"tekken.json" if name == TEKKEN else "tokenizer.model": path}, {})


@pytest.mark.parametrize("name", IDS)
def test_published(name):
    tokenizer = load(name)
    assert (tokenizer.vocab_size, tokenizer.bos, tokenizer.eos) == ABOUT[name]
    for text, ids in zip(TEXTS, IDS[name], strict=False):
        assert tokenizer.encode(text) == [int(i) for i in ids.split()]
    for text in (*TEXTS, *cases.SENTENCES, "".join(cases.SENTENCES)):
        ids = tokenizer.encode(text, plain=True)
        assert tokenizer.decode(ids) == text
        stream = tokenizer.stream()
        parts = [stream.push(i) for i in ids]
        assert "".join(parts) + stream.end() == text
        assert not any("\ufffd" in p for p in parts)


def test_smollm2_chats():
    """ChatML, from the template inside the file."""
    tokenizer = load(SMOLLM2)
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
    assert tokenizer.decode(ids, skip_special=False) == expected
    assert ids == tokenizer.encode(expected)
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)


@pytest.mark.oracle
def test_smollm2_chats_as_in_transformers(tmp_path):
    from transformers import PreTrainedTokenizerFast

    checkpoint = Load(str(needs(SMOLLM2)), (Container(),), (Dialect(),)).run(Context(Path()))
    for name, content in checkpoint.files.items():
        (tmp_path / name).write_bytes(content)
    ours, theirs = Auto().load(checkpoint), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for name in ("one", "system", "turns"):
        for add in (True, False):
            expected = theirs.apply_chat_template(chats.CHATS[name], add_generation_prompt=add, return_dict=False)
            assert ours.chat(chats.CHATS[name], add_generation_prompt=add) == expected
