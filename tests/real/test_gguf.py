"""SmolLM2-135M-Instruct as published, Q4_1: loaded, compared with transformers weight for weight, exported, run.

Needs the file (98 MB) in the folder that WEIGHTMILL_MODELS names; nothing is downloaded here.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.stage import Context
from pipeline.tensors.qtensor import QTensor
from plugins.formats.gguf.file import GgufContainer as Container
from plugins.formats.gguf.model import GgufDialect as Dialect
from stages.load import Load
from tests.cli.run import pipeline
from tests.oracles.blocks_by_hand import dequantize

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE = Path(os.environ.get("WEIGHTMILL_MODELS", ".models")).absolute() / NAME
pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(not FILE.is_file(), reason=f"{NAME} is not in WEIGHTMILL_MODELS"),
]
# What llama.cpp (llama-cpp-python 0.3.36) makes of these texts with this file.
TOKENS = {
    "The capital of France is Paris.": [504, 3575, 282, 4649, 314, 7042, 30],
    "Hello   world\n\n 12345 + 67": [19556, 256, 905, 8866, 33, 34, 35, 36, 37, 1232, 216, 38, 39],
    "<|im_start|>user\nHi<|im_end|>": [1, 4093, 198, 26843, 2],
}


@pytest.fixture(scope="module")
def checkpoint():
    return Load(str(FILE), (Container(),), (Dialect(),)).run(Context(Path()))


@pytest.fixture(scope="module")
def transformed():
    """transformers' own reading of the file, fp32."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FILE.parent, gguf_file=NAME, dtype=torch.float32)


def test_what_it_holds(checkpoint):
    config = checkpoint.config
    assert (config["model_type"], config["num_hidden_layers"], config["num_key_value_heads"]) == ("llama", 30, 3)
    assert (config["rms_norm_eps"], config["rope_theta"], config["tie_word_embeddings"]) == (1e-5, 100000.0, True)
    encodings = {n.rsplit(".", 2)[-2]: s.encoding for n, s in checkpoint.store.specs.items()}
    assert encodings["embed_tokens"] == "int8/32/f16"
    assert encodings["q_proj"] == "uint4/32/f16/zero:min_f16"
    assert encodings["norm"] == "F32"
    assert sum(s.size for s in checkpoint.store.specs.values()) == 134_515_008
    assert set(checkpoint.files) >= {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_weights_are_those_that_transformers_reads(checkpoint, transformed):
    theirs = transformed.state_dict()
    assert set(checkpoint.store.specs) == set(theirs) - {"lm_head.weight"}
    for name, spec in checkpoint.store.specs.items():
        value = checkpoint.store.read(name)
        ours = dequantize(value).astype(np.float32) if isinstance(value, QTensor) else value
        assert ours.shape == spec.shape
        assert np.array_equal(ours, theirs[name].numpy()), name


def test_tokens_are_those_of_llama_cpp(checkpoint):
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_buffer(checkpoint.files["tokenizer.json"])
    assert {text: tokenizer.encode(text).ids for text in TOKENS} == TOKENS


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_exported_it_still_answers(checkpoint, transformed, tmp_path):
    """The whole way on the command line, to bf16 in safetensors; transformers and its tokenizer take it from there."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = pipeline(
        "+model=smollm2", f"model.source={FILE}", "export=plain", "flow=convert", "paths.run=run", cwd=tmp_path
    )
    assert done.code == 0, done.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run/model")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        ours, theirs = model(**ids).logits[0], transformed(**ids).logits[0]
        answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.9  # weights rounded to bf16
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.999


def test_written_again_it_is_the_same(checkpoint, tmp_path):
    """GGUF to GGUF keeps every tensor's bytes and the whole vocabulary."""
    args = ["+model=smollm2", f"model.source={FILE}", "export=gguf", "stages=[load,export]"]
    done = pipeline(*args, "paths.run=run", cwd=tmp_path)
    assert done.code == 0, done.err
    before, after = Container().open(FILE), Container().open(tmp_path / "run/model")
    assert set(before.specs) == set(after.specs)
    assert all(before.read(n).tobytes() == after.read(n).tobytes() for n in before.specs)
    old, new = before.config()["gguf"], after.config()["gguf"]
    assert old["types"] == new["types"]
    changed = {k for k in old["kv"] if new["kv"].get(k) != old["kv"][k]}
    assert changed <= {"llama.attention.layer_norm_rms_epsilon"}, changed  # 1e-05, which is the same fp32
    assert json.dumps(new)
