"""Texts: what the tokens are, what is kept and when it is made anew, what is wrong with files and where."""

import gzip
import json
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from pipeline.errors import PlanError, SourceError, StorageError
from plugins.data import corpus, documents, encode
from plugins.data.text import Text
from tests.cases import tokenizers as cases
from tests.cases.opened import opened, rows

LINES = "\n".join(cases.SENTENCES) + "\n"


def written(tmp_path, name, content):
    path = tmp_path / name
    raw = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return str(path)


def jsonl(*objects):
    return "".join(json.dumps(o) + "\n" for o in objects)


@pytest.mark.parametrize("kind", cases.KINDS)
@pytest.mark.brief("ranks", "sentencepiece_bpe")
def test_the_tokens_of_a_text_are_those_of_all_of_it_at_once(kind, tmp_path, monkeypatch):
    """However often it is cut while it is read."""
    monkeypatch.setattr(encode, "PART_CHARS", 300)
    monkeypatch.setattr(encode, "BATCH_CHARS", 900)
    tokenizer = cases.tokenizer(kind)
    text = LINES * 2
    files = tuple(written(tmp_path, n, text) for n in ("a.txt", "b.txt.gz"))
    splits = opened(Text(files, length=10**6, end=None, begin=False), tmp_path, tokenizer)
    assert rows(splits.train) == [tokenizer.encode(text, plain=True)] * 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", "", "a.txt: is empty"), ("a.txt.gz", "", "a.txt.gz: has no text in it"),
        ("a.txt", " \n\n", "a.txt: has no text in it"), ("a.jsonl", "\n\n", "a.jsonl: has no text in it"),
        ("a.json", '[\n {"text": "x"}\n]', "line 1: is one JSON value over several lines; of JSON Lines"),
    ],
)  # fmt: skip
def test_files_without_anything_to_learn(name, content, said, tmp_path):
    (problem,) = problems(Text((written(tmp_path, name, content),)))
    assert said in str(problem)


def test_what_is_compressed_and_cut_off(tmp_path):
    path = written(tmp_path, "a.jsonl.gz", jsonl(*[{"text": f"a fox {i}"} for i in range(999)]))
    os.truncate(path, os.path.getsize(path) // 2)
    problem = problems(Text((path,)))[-1]
    assert str(problem) == f"{path}: cannot be read: what is compressed is cut off"


def test_documents_that_predict_nothing_are_counted(tmp_path):
    path = written(tmp_path, "a.jsonl", jsonl({"text": "a"}, {"text": "b"}, {"text": "one fox"}))
    facts = opened(Text((path,), 16, end=None), tmp_path, cases.tokenizer("byte_level")).facts
    assert (facts["documents"], facts["documents of one token, left out"]) == (3, 2)
    alone = written(tmp_path, "b.jsonl", jsonl({"text": "a"}))
    with pytest.raises(PlanError, match="1 document with 1 token to train on; a prediction takes two tokens"):
        opened(Text((alone,), 16, end=None), tmp_path, cases.tokenizer("byte_level"))


def test_a_plan_says_what_is_held_out(tmp_path):
    files = [written(tmp_path, n, LINES * 40) for n in ("a.txt", "b.txt")]
    plan = Text((files[0],), 16, held_out=0.25, held_out_files=(files[1],)).plan(None)
    assert plan.held_out == pytest.approx(1.25 * plan.examples, rel=0.02)


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["one fox", "two dogs"], "n": [1, 2]}), path)
    tokenizer = cases.tokenizer("byte_level")
    splits = opened(Text((str(path),), length=64, end=None), tmp_path, tokenizer)
    assert sorted(rows(splits.train)) == sorted(tokenizer.encode(t) for t in ("one fox", "two dogs"))
    assert "has no column 'txt'" in str(problems(Text((str(path),), field="txt"))[0])
    parquet.write_table(pyarrow.table({"text": ["one fox", None]}), path)
    assert str(problems(Text((str(path),)))[0]) == f"{path}, row 2: the field 'text' is None; a text is expected"
    bad = written(tmp_path, "b.parquet", "no parquet")
    assert "cannot be read as Parquet" in str(problems(Text((bad,)))[0])


def test_parquet_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (problem,) = problems(Text((written(tmp_path, "a.parquet", "x"),)))
    assert "pip install 'weightmill[data]'" in problem.message


def test_documents_and_what_frames_them(tmp_path):
    tokenizer = cases.tokenizer("ranks")  # o200k_harmony's special tokens, and no BOS
    end = tokenizer.id_of("<|endoftext|>")
    texts = ["one", "two <|end|> as text", "three\nlines\n\nof it"]
    plain = written(tmp_path, "a.txt", "\n--\n".join(texts) + "\n")
    lines = written(tmp_path, "b.jsonl.gz", jsonl(*({"body": t, "n": 1} for t in texts)))
    found = rows(opened(Text((plain,), 64, separator="--"), tmp_path, tokenizer).train)
    assert sorted(found) == sorted([*tokenizer.encode(t + "\n", plain=True), end] for t in texts)
    found = rows(opened(Text((lines,), 64, field="body"), tmp_path, tokenizer).train)
    assert sorted(found) == sorted([*tokenizer.encode(t, plain=True), end] for t in texts)
    found = rows(opened(Text((lines,), 64, field="body", end="<|call|>"), tmp_path, tokenizer).train)
    assert found[0][-1] == tokenizer.id_of("<|call|>")
    with pytest.raises(SourceError, match=r"data.end='<\|ende\|>': the tokenizer has no such token"):
        opened(Text((lines,), 64, field="body", end="<|ende|>"), tmp_path, tokenizer)
    spm = cases.tokenizer("sentencepiece_bpe")  # puts <s> before a text
    found = rows(opened(Text((lines,), 64, field="body"), tmp_path, spm).train)
    assert sorted(found) == sorted([spm.bos, *spm.encode(t, plain=True), spm.eos[-1]] for t in texts)
    found = rows(opened(Text((lines,), 64, field="body", begin=False, end=None), tmp_path, spm).train)
    assert sorted(found) == sorted(spm.encode(t, plain=True) for t in texts)


def test_held_out_by_what_a_document_says(tmp_path):
    tokenizer = cases.tokenizer("byte_level")
    texts = [f"{s} {i}" for i, s in enumerate(cases.SENTENCES * 4)]
    one = written(tmp_path, "a.jsonl", jsonl(*({"text": t} for t in texts)))
    splits = opened(Text((one,), 256, held_out=0.25), tmp_path, tokenizer)
    train, apart = ({tuple(d) for d in rows(e)} for e in (splits.train, splits.held_out))
    assert not train & apart
    assert len(train) + len(apart) == len(texts)
    assert 0.15 < len(apart) / len(texts) < 0.35
    # Other documents before and between, copies: each is on the side where it was.
    more = ["new"] + [t for pair in zip(texts, texts, strict=True) for t in pair]
    two = written(tmp_path, "b.jsonl", jsonl(*({"text": t} for t in more)))
    again = opened(Text((two,), 256, held_out=0.25), tmp_path, tokenizer)
    assert {tuple(d) for d in rows(again.held_out)} - apart <= {tuple(tokenizer.encode("new"))}
    whole = opened(Text((two,), 256, held_out_files=(one,)), tmp_path, tokenizer)
    assert {tuple(d) for d in rows(whole.held_out)} == train | apart
    both = opened(Text((two,), 256, held_out=0.25, held_out_files=(one,)), tmp_path, tokenizer)
    assert {tuple(d) for d in rows(both.held_out)} == train | apart


def test_nothing_held_out_of_one_document(tmp_path):
    data = Text((written(tmp_path, "a.txt", LINES),), held_out=0.1)
    with pytest.raises(PlanError, match=r"0 documents with 0 tokens are held out; .*data.separator=LINE"):
        opened(data, tmp_path, cases.tokenizer("byte_level"))


def test_all_that_is_alike_is_held_out_together(tmp_path):
    data = Text((written(tmp_path, "a.jsonl", jsonl(*[{"text": "a fox"}] * 4)),), 8, held_out=0.999)
    with pytest.raises(PlanError, match=r"all of 4 documents with .* are held out, and none is left .*; equal ones go"):
        opened(data, tmp_path, cases.tokenizer("byte_level"))


def test_a_line_between_documents_is_a_whole_one(tmp_path, monkeypatch):
    """Not the line break of one that was as long as what is read at once."""
    monkeypatch.setattr(documents, "BLOCK_NBYTES", 4)
    written(tmp_path, "a.txt", "abcd\nefg\n\nhi")
    found = documents.parts(tmp_path / "a.txt", "auto", "text", "", documents.Faults())
    texts = "".join(part.text + "|" * part.last for part in found)
    assert texts == "abcd\nefg\n|hi|"


@pytest.mark.parametrize("text", ["x", jsonl({"text": "x"}, {"text": "y"})])
def test_a_token_is_not_enough(text, tmp_path):
    name = "a.jsonl" if "{" in text else "a.txt"
    data = Text((written(tmp_path, name, text),), end=None)
    with pytest.raises(PlanError, match=r"documents? with . tokens? to train on; a prediction takes two"):
        opened(data, tmp_path, cases.tokenizer("byte_level"))


def test_tokenized_once(tmp_path, monkeypatch):
    files = tuple(written(tmp_path, n, jsonl({"text": n}, {"text": LINES})) for n in ("a.jsonl", "b.jsonl"))
    tokenizer, made = cases.tokenizer("byte_level"), []
    real = encode.encoded
    monkeypatch.setattr(encode, "encoded", lambda parts, t: made.append(1) or real(parts, t))
    first = opened(Text(files, 16), tmp_path, tokenizer)
    assert len(made) == 2
    again = opened(Text(files[::-1], 32, held_out=0.01, held_out_files=files), tmp_path, tokenizer)
    assert len(made) == 2  # another length, another split, another order
    assert sorted(map(tuple, rows(again.held_out)))
    opened(Text(files, 16, end="<|a|>"), tmp_path, tokenizer)
    opened(Text(files, 16), tmp_path, cases.tokenizer("byte_fallback"))
    assert len(made) == 6
    written(tmp_path, "a.jsonl", jsonl({"text": "other"}))
    opened(Text(files, 16), tmp_path, tokenizer)
    assert len(made) == 7
    renamed = tmp_path / "c.jsonl"
    (tmp_path / "b.jsonl").rename(renamed)
    moved = opened(Text((str(renamed),), 16), tmp_path, tokenizer)
    assert len(made) == 7
    assert len(moved.train) < len(first.train)


@pytest.mark.parametrize("name", [corpus.TOKENS, corpus.ENDS, corpus.DIGESTS])
def test_what_is_kept_and_was_cut_off_is_made_anew(name, tmp_path):
    data = Text((written(tmp_path, "a.txt", LINES),), 16)
    tokenizer = cases.tokenizer("byte_level")
    expected = rows(opened(data, tmp_path, tokenizer).train)
    (kept,) = (tmp_path / ".results").glob(f"*/{name}")
    kept.write_bytes(kept.read_bytes()[:-1])
    assert rows(opened(data, tmp_path, tokenizer).train) == expected
    raw = bytearray(kept.read_bytes())
    raw[0] ^= 1
    kept.write_bytes(raw)
    assert rows(opened(data, tmp_path, tokenizer).train) == expected


@pytest.mark.repeats
def test_interrupted_and_begun_again(tmp_path, monkeypatch):
    """Files that were done are found again; of that in which it stopped, nothing is left."""
    files = tuple(written(tmp_path, f"{n}.txt", LINES * 3 + n) for n in "abc")
    tokenizer, made = cases.tokenizer("byte_level"), []
    monkeypatch.setattr(encode, "PART_CHARS", 200)
    monkeypatch.setattr(encode, "BATCH_CHARS", 400)
    real = corpus._Writer.add

    def add(self, some):
        made.append(self._what)
        if made.count("tokenizing b.txt") == 3:
            raise KeyboardInterrupt
        real(self, some)

    monkeypatch.setattr(corpus._Writer, "add", add)
    with pytest.raises(KeyboardInterrupt):
        opened(Text(files, 16), tmp_path, tokenizer)
    results = tmp_path / ".results"
    assert [p.suffix for p in results.iterdir()] == [""]
    found = opened(Text(files, 16), tmp_path, tokenizer)
    assert made.count("tokenizing a.txt") < made.count("tokenizing b.txt")
    monkeypatch.setattr(corpus._Writer, "add", real)
    assert rows(found.train) == rows(opened(Text(files, 16), tmp_path / "elsewhere", tokenizer).train)


def test_two_at_once(tmp_path, monkeypatch):
    data = Text((written(tmp_path, "a.txt", LINES),), 16)
    tokenizer, made = cases.tokenizer("byte_level"), []
    real = encode.encoded
    both = threading.Barrier(2, timeout=30)

    def encoded(parts, t):
        made.append(1)
        return real(parts, t)

    monkeypatch.setattr(encode, "encoded", encoded)
    found = []

    def run():
        both.wait()
        found.append(rows(opened(data, tmp_path, tokenizer).train))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert len(made) == 1


def test_no_room(tmp_path, monkeypatch):
    data = Text((written(tmp_path, "a.txt", LINES),), 16)

    monkeypatch.setattr(corpus, "ANSWERS", "/dev/full")
    monkeypatch.setattr(corpus, "TOKENS", "/dev/full")
    with pytest.raises(StorageError, match="No space left"):
        opened(data, tmp_path, cases.tokenizer("byte_level"))
    assert not list((tmp_path / ".results").glob("*.partial"))


def problems(data):
    return data.check(None)


BAD = {
    "empty": ("a.txt", b"", [("a.txt", "is empty")]),
    "no text": ("a.txt", b"fine\nbad \xff\n", [("a.txt, line 2", "is no UTF-8: byte 0xff")]),
    "ends within a character": ("a.txt", "fine\né".encode()[:-1], [("a.txt, line 2", "is no UTF-8: it ends within")]),
    "no JSON": ("a.jsonl", b'{"text": "a"}\nnot\n', [("a.jsonl, line 2", "not JSON at character 0")]),
    "cut off": ("a.jsonl", b'{"text": "a"}\n\n{"text": "b', [("a.jsonl, line 3", "the file ends within this line")]),
    "a list, not cut off": ("a.json", b'[{"text": "a"}]', [("line 1", "is a list of 1; of JSON Lines each line")]),
    "compressed": ("a.jsonl", gzip.compress(b"{}"), [("a.jsonl", "is compressed (gzip), and its name does not")]),
    "by another": ("a.jsonl.zst", b"\x28\xb5\x2f\xfd....", [("a.jsonl.zst", "is compressed (Zstandard); of what is")]),
    "chats": ("a.jsonl", b'{"messages": []}', [("line 1", "has no field 'text'; data=chat is for chats")]),
    "an end of its own": ("A.JSONL", b'{"txt": "a"}\n', [("line 1", "has no field 'text'")]),
    "another field": ("a.jsonl", b'{"txt": "a"}\n', [("line 1", "has no field 'text'; data.field=NAME names")]),
    "mixed": (
        "a.jsonl", b'{"text": "a"}\n{"text": 3}\n[1]\n{"text": ""}\n{"text": null}\n',
        [("line 2", "is 3; a text"), ("line 3", "is a list of 1"), ("line 4", "is empty"), ("line 5", "None")],
    ),
    "not compressed": ("a.txt.gz", None, [("a.txt.gz", "cannot be read: Not a gzipped file")]),
    "another encoding": ("a.jsonl", b'{"text": "\xe9"}\n', [("a.jsonl, line 1", "not UTF-8 at byte 10")]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_with_file_and_line_before_anything_else(name, tmp_path):
    file, raw, expected = BAD[name]
    path = tmp_path / file
    path.write_bytes(b"no gzip" if raw is None else raw)
    data = Text((str(path),), 16)
    assert len(problems(data)) == len(expected)
    for problem, (where, what) in zip(problems(data), expected, strict=True):
        assert where in problem.where
        assert what in problem.message
    with pytest.raises(PlanError) as error:
        opened(data, tmp_path, cases.tokenizer("byte_level"))
    assert len(error.value.problems) == len(expected)


def test_a_path_is_said_once_where_no_other_file_is_called_so(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    files = [written(folder, "a.jsonl", "{}\n{}\n") for folder in (tmp_path, other)]
    assert [p.where for p in problems(Text((files[0],)))] == [f"{files[0]}, line 1", "a.jsonl, line 2"]
    assert [p.where for p in problems(Text(tuple(files)))] == [f"{file}, line {n}" for file in files for n in (1, 2)]


def test_all_of_it_at_once_in_bounded_room(tmp_path):
    lines = written(tmp_path, "many.jsonl", "{}\n" * 1000)
    empty = written(tmp_path, "empty.txt", "")
    data = Text((lines, empty, str(tmp_path / "mani.jsonl"), str(tmp_path)), held_out_files=("nowhere/at/all",))
    found = problems(data)
    said = "\n".join(map(str, found))
    assert f"{tmp_path}/mani.jsonl: no such file; did you mean 'many.jsonl'" in said
    assert f"data.files: {tmp_path}: a folder; its files are named one by one (allowed: empty.txt, many.jsonl)" in said
    assert "empty.txt: is empty" in said
    assert "data.held_out_files: nowhere/at/all: no such file" in said
    assert found[-1].message == "and 980 more problems in this file"
    assert len(found) == 20 + 1 + 4
    assert [f.path.name for f in data.inputs()] == ["many.jsonl"]
    assert "no file is named" in str(problems(Text(()))[0])
    assert "names a file twice" in str(problems(Text((lines, lines)))[0])


def test_what_is_trained_on_is_not_held_out(tmp_path):
    one, copy = (written(tmp_path, name, jsonl({"text": LINES})) for name in ("a.jsonl", "b.jsonl"))
    (link := tmp_path / "link.jsonl").symlink_to(one)
    for apart, as_named in ((one, ""), (copy, f", as {one}"), (str(link), f", as {one}")):
        [problem] = problems(Text((one,), held_out_files=(apart,)))
        assert problem.where == "data.held_out_files"
        assert problem.message.startswith(f"{apart}: is trained on too{as_named}; ")
    assert not problems(Text((one,), held_out_files=(written(tmp_path, "c.jsonl", jsonl({"text": "else"})),)))


def test_a_plan_reads_the_beginning_and_the_end_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "CHECKED", 1000)
    good = jsonl({"text": "a fox"}) * 500
    path = written(tmp_path, "a.jsonl", good + "oops\n" + good + '{"text": "cut')
    (problem,) = problems(Text((path,)))
    assert "its last line" in problem.message
    with pytest.raises(PlanError) as error:
        opened(Text((path,), 16), tmp_path, cases.tokenizer("byte_level"))
    assert [p.where.rpartition(" ")[2] for p in error.value.problems] == ["501", "1,002"]


def test_a_plan_says_how_much_there_is(tmp_path):
    data = Text((written(tmp_path, "a.txt", LINES),), 16)
    plan = data.plan(None)
    train = opened(data, tmp_path, cases.tokenizer("byte_level")).train
    assert 0.3 < plan.examples / len(train) < 3
    assert plan.specs == train.specs
    kept = sum(f.stat().st_size for f in (tmp_path / ".results").rglob("*.bin"))
    assert kept <= plan.disk_nbytes


def test_the_same_examples_in_the_same_order(tmp_path):
    data = Text((written(tmp_path, "a.txt", LINES),), 16)
    tokenizer = cases.tokenizer("byte_level")
    one, two = (opened(data, tmp_path / n, tokenizer).train.batch(np.arange(9)) for n in ("one", "two"))
    assert all((one[n] == two[n]).all() for n in one)


def test_more_tokens_than_fit_16_bits(tmp_path):
    class Large:
        def __init__(self, tokenizer):
            self._of = tokenizer

        def __getattr__(self, name):
            return 1 << 17 if name == "vocab_size" else getattr(self._of, name)

        def encode_batch(self, texts, **options):
            return [[i + (1 << 16) for i in ids] for ids in self._of.encode_batch(texts, **options)]

    tokenizer = cases.tokenizer("byte_level")
    data = Text((written(tmp_path, "a.txt", "a brown fox"),), 64, end=None, begin=False)
    assert rows(opened(data, tmp_path, Large(tokenizer)).train) == [
        [i + (1 << 16) for i in tokenizer.encode("a brown fox")]
    ]


def test_a_run_that_waits_is_told_how_far_it_is(tmp_path, monkeypatch):
    from pipeline.running import text_stream

    monkeypatch.setattr(corpus, "SAID_S", 0)
    said = []
    with text_stream.to(lambda s: None, said.append):
        opened(Text((written(tmp_path, "a.txt", LINES),), 16), tmp_path, cases.tokenizer("byte_level"))
    assert said[-1].startswith("tokenizing a.txt: 100%, ")


def test_options_that_cannot_be():
    for options in ({"length": 0}, {"held_out": 1.0}, {"held_out": -0.1}):
        with pytest.raises(Exception, match=next(iter(options))):
            replace(Text(("a",)), **options)
