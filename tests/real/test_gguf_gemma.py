"""Gemma 3 270M as published, Q4_K_M: its settings, its tokens, its weights as transformers reads them, and its text.

Needs the file (253 MB, `make models`) in the folder that WEIGHTMILL_MODELS names; nothing is downloaded here.
"""

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from pipeline.ops import Kernel
from pipeline.stage import Context
from pipeline.tensors.qtensor import QTensor
from plugins.formats.gguf.file import GgufContainer as Container
from plugins.formats.gguf.model import GgufDialect as Dialect
from stages.load import Load
from tests.cases import toy_spm
from tests.cli.run import pipeline

NAME = "gemma-3-270m-q4_k_m.gguf"
FILE = Path(os.environ.get("WEIGHTMILL_MODELS", ".models")).absolute() / NAME
pytestmark = [
    pytest.mark.download,
    pytest.mark.skipif(not FILE.is_file(), reason=f"{NAME} is not in WEIGHTMILL_MODELS"),
]
ROWS_NBYTES = 1 << 24  # the embeddings alone are 671 MB as fp32
UNPACK, CAST = Kernel("dequantize", ("numpy",)), Kernel("cast", ("numpy",))


@pytest.fixture(scope="module")
def checkpoint():
    return Load(str(FILE), (Container(),), (Dialect(),)).run(Context(Path()))


def values(store):
    """(name, first row, fp32 values of some rows, the same as bf16)."""
    for name, spec in store.specs.items():
        step = max(1, ROWS_NBYTES * spec.shape[0] // (4 * spec.size))
        for at in range(0, spec.shape[0], step):
            value = store.read(name, (slice(at, min(at + step, spec.shape[0])),))
            if isinstance(value, QTensor):
                yield name, at, UNPACK(value, "F32"), UNPACK(value, "BF16")
            else:
                yield name, at, value, CAST(value, "BF16")


def test_what_it_holds(checkpoint):
    config = checkpoint.config
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("gemma3_text", 18, 640)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 1, 256)
    assert (config["rope_theta"], config["rope_local_base_freq"], config["rope_scaling"]) == (1e6, 1e4, None)
    assert (config["sliding_window"], config["query_pre_attn_scalar"]) == (512, 256)
    assert [n for n, t in enumerate(config["layer_types"]) if t == "full_attention"] == [5, 11, 17]
    assert config["tie_word_embeddings"]
    assert "decoded" not in checkpoint.origin
    specs = checkpoint.store.specs
    assert sum(s.size for s in specs.values()) == 268_098_176
    assert specs["model.embed_tokens.weight"].encoding == "int8/32/f16"
    kinds = {x: specs[f"model.layers.0.self_attn.{x}_proj.weight"].encoding for x in "qko"}
    assert kinds == {"q": "q5_0", "k": "q5_0", "o": "q4_k"}
    metadata = json.loads(checkpoint.files["gguf_metadata.json"])
    assert metadata["general.license"] == ["string", "gemma"]


def test_every_tensor_is_what_the_package_reads(checkpoint):
    """Norms of the file are plus one."""
    theirs = {t.name: t for t in gguf.GGUFReader(FILE).tensors}
    for name, part in ((n, b.parts[0]) for n, b in checkpoint.store.binding.tensors.items()):
        if name == "model.embed_tokens.weight":
            continue
        want = gguf.dequantize(theirs[part.leaf].data, theirs[part.leaf].tensor_type)
        value = checkpoint.store.read(name)
        ours = UNPACK(value, "F32") if isinstance(value, QTensor) else value
        assert np.array_equal(ours, want - 1 if name.endswith("norm.weight") else want), name


def test_tokens_are_those_of_sentencepiece(checkpoint):
    """The vocabulary of the file as a SentencePiece model: the library itself says what the tokens are."""
    import tokenizers
    from sentencepiece import SentencePieceProcessor
    from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

    kv = {k: v for k, (_, v) in Container().open(FILE).config()["gguf"]["kv"].items()}
    model = ModelProto()
    model.trainer_spec.model_type, model.trainer_spec.byte_fallback = TrainerSpec.BPE, True
    model.normalizer_spec.name, model.normalizer_spec.add_dummy_prefix = "identity", False
    model.normalizer_spec.remove_extra_whitespaces = False
    columns = (kv[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type"))
    for i, (token, score, kind) in enumerate(zip(*columns, strict=True)):
        piece = model.pieces.add()
        piece.piece, piece.score = token.replace(" ", "▁"), score
        piece.type = 2 if i == kv["tokenizer.ggml.unknown_token_id"] else kind
    theirs = SentencePieceProcessor(model_proto=model.SerializeToString())
    ours = tokenizers.Tokenizer.from_buffer(checkpoint.files["tokenizer.json"])
    for text in (*toy_spm.TEXTS, "<table><b>x</b>\t\t\n\n\n", "def f(x):\n    return x ** 2\n\n\n\tend"):
        ids = ours.encode(text).ids
        assert ids == [2, *theirs.encode(text)], text
        assert ours.decode(ids) == theirs.decode(ids[1:]), text


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_weights_are_those_that_transformers_reads(checkpoint):
    """Bit for bit, in fp32 and rounded to bf16."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(FILE.parent, gguf_file=NAME, dtype=torch.float32).state_dict()
    assert set(checkpoint.store.specs) == set(theirs) - {"lm_head.weight"}
    for name, at, wide, narrow in values(checkpoint.store):
        want = theirs[name][at : at + len(wide)]
        assert np.array_equal(wide.view(np.uint32), want.numpy().view(np.uint32)), name
        assert np.array_equal(narrow.view(np.uint16), want.to(torch.bfloat16).view(torch.uint16).numpy()), name


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore")
def test_exported_it_knows_the_days(tmp_path):
    """The whole way on the command line, to bf16 in safetensors; transformers and its tokenizer take it from there."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    args = ("+model=gemma3", f"model.source={FILE}", "export=plain", "flow=convert", "paths.run=run")
    done = pipeline(*args, cwd=tmp_path)
    assert done.code == 0, done.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run/model", dtype=torch.bfloat16)
    rope = model.config.rope_parameters
    assert (rope["full_attention"]["rope_theta"], rope["sliding_attention"]["rope_theta"]) == (1e6, 1e4)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run/model")
    assert tokenizer("The capital of France is")["input_ids"] == [2, 818, 5279, 529, 7001, 563]
    ids = tokenizer("Monday, Tuesday, Wednesday,", return_tensors="pt")
    with torch.no_grad():
        answer = model.generate(**ids, max_new_tokens=4, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == " Thursday, Friday,"
