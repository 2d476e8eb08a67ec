"""Vocabularies that break the library which runs them, or keep it busy for ever: a clean error, and Ctrl-C ends it."""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import SourceError
from plugins.tokenizers import patience
from plugins.tokenizers.load import load_tokenizer

LETTERS = {c: i for i, c in enumerate("abcdefghijklmnopqrstuvwxyz! ")}
EXPONENTIAL, QUADRATIC = r"(a|aa)+$", r"[\w\s]+(?=\w{9})"
WORDS = "hello world " * 20_000  # hours
SPLIT = {"type": "Split", "behavior": "Isolated", "invert": False}


def files(pattern: str = "", where: str = "pre_tokenizer", **parts: object) -> dict[str, bytes]:
    """A tokenizer.json of letters, with a pattern in one of its parts; `parts` replace whole parts."""
    regex = {"pattern": {"Regex": pattern}}
    kinds = {"pre_tokenizer": {**SPLIT, **regex}, "normalizer": {"type": "Replace", **regex, "content": "b"}}
    kinds["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}, kinds["normalizer"]]}
    found = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": LETTERS, "merges": [],
        },
    }  # fmt: skip
    return {"tokenizer.json": json.dumps(found | ({where: kinds[where]} if pattern else {}) | parts).encode()}


def tekken(pattern: str, ranks: dict[str, int] | None = None) -> dict[str, bytes]:
    tokens = {chr(i): i for i in range(128)} if ranks is None else ranks
    about = {"default_num_special_tokens": 2, "default_vocab_size": 2 + len(tokens), "pattern": pattern}
    vocab = [{"rank": r, "token_bytes": base64.b64encode(t.encode()).decode()} for t, r in tokens.items()]
    special = [{"rank": 0, "token_str": "<s>"}, {"rank": 1, "token_str": "</s>"}]
    return {"tekken.json": json.dumps({"config": about, "vocab": vocab, "special_tokens": special}).encode()}


@pytest.mark.parametrize("where", ["pre_tokenizer", "normalizer"])
def test_patterns_that_explode(where):
    """The library gives up on its own, and panics."""
    tokenizer = load_tokenizer(files(EXPONENTIAL, where), {}, "there")
    assert tokenizer.encode("aaa!") == [LETTERS[c] for c in "aaa!"]
    for plain in (False, True):
        with pytest.raises(SourceError, match=r"there: tokenizer.json: what it says breaks the library that runs it: "):
            tokenizer.encode("a" * 60 + "!", plain=plain)


def test_decoders_that_explode():
    tokenizer = load_tokenizer(files(EXPONENTIAL, "decoder"), {}, "there")
    ids = [LETTERS["a"]] * 60 + [LETTERS["!"]]
    with pytest.raises(SourceError, match=r"there: tokenizer.json: what it says breaks the library"):
        tokenizer.decode(ids)
    assert tokenizer.decode(ids[-1:]) == "!"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (tekken("("), "not a vocabulary: ValueError: .*parenthesis"),
        (tekken(".", {"a": 0, "b": 0}), "b'a' and b'b' both have rank 2"),
        (tekken(".", {"a": 0, "b": -9}), "not a tekken vocabulary: rank -7"),
        (files("("), "not a tokenizer: .*parenthesis"),
    ],
)
def test_vocabularies_that_cannot_be_loaded(given, message):
    with pytest.raises(SourceError, match=f"there: .*json: {message}"):
        load_tokenizer(given, {}, "there")


def test_bytes_that_a_vocabulary_lacks():
    with pytest.raises(SourceError, match=r"there: tekken.json: what it says breaks the library .*no entry"):
        load_tokenizer(tekken("(?s:.)"), {}, "there").encode("é")


def test_errors_of_the_library_name_the_file():
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": {"a": 0}}
    model["max_input_chars_per_word"] = 9
    with pytest.raises(SourceError, match=r"there: tokenizer.json: Exception: .*\[UNK\]"):
        load_tokenizer(files(model=model), {}, "there").encode("b")


BUSY = {
    "encode": (files(QUADRATIC), "tokenizer.encode(words)"),
    "encode plain": (files(QUADRATIC, "normalizer"), "tokenizer.encode(words, plain=True)"),
    "decode": (files(QUADRATIC, "decoder"), "tokenizer.decode([7, 4, 11, 11, 14, 27] * 40_000)"),
    "ranks": (tekken(QUADRATIC + "|(?s:.)"), "tokenizer.encode(words)"),
}
PROGRAM = """
import sys
from plugins.tokenizers import patience
from plugins.tokenizers.load import load_tokenizer
tokenizer = load_tokenizer({files!r}, {{}}, "there")
words = {words!r}
patience.PATIENCE_S, patience.CHARS_PER_S = {seconds}, 1e9
print("ready", flush=True)
{call}
"""


def started(name: str, seconds: float) -> "subprocess.Popen[str]":
    """A process of its own, which takes along the thread that is still busy when it ends."""
    given, call = BUSY[name]
    program = PROGRAM.format(files=given, words=WORDS, seconds=seconds, call=call)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "RUST_BACKTRACE": "0"}
    process = subprocess.Popen(
        [sys.executable, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(program)
    process.stdin.close()
    process.stdin = None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("name", BUSY)
def test_patterns_that_never_end(name):
    _, said = started(name, 0.2).communicate(timeout=100)
    assert "SourceError: there: t" in said
    assert "after 0 s: one of its patterns may never end" in said


def test_an_interrupt_ends_it():
    process = started("encode", 1000)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=100)
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_patience_passes_results_and_errors_on():
    assert patience.patiently("x", 1, lambda: [1]) == [1]
    with pytest.raises(SystemExit):
        patience.patiently("x", 1, lambda: sys.exit(3))
    with pytest.raises(SourceError, match=r"^x: KeyError: 'y'$"):
        patience.patiently("x", 1, lambda: {}["y"])
