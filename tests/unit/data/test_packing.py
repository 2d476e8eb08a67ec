"""Packing: every prediction of every document exactly once, in rows that hold no more than they can."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.data.corpus import Corpus, Tokenized
from plugins.data.packing import pack
from plugins.data.rows import Packed


def packed(documents, length, answers=None):
    """`Packed` of lists of ids in one file, each id used once so that it can be told where it went."""
    ends = np.cumsum([len(d) for d in documents], dtype=np.int64)
    tokens = np.array([i for d in documents for i in d], np.uint16)
    answers = None if answers is None else np.array(answers, np.uint8)
    file = Tokenized(tokens, ends, np.arange(len(documents), dtype=np.uint64), answers)
    return Packed(Corpus.of([file], all_of), length)


def all_of(digests):
    return np.ones(len(digests), bool)


def numbered(lengths):
    ids = iter(range(sum(lengths)))
    return [[next(ids) for _ in range(n)] for n in lengths]


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 17))
def test_every_prediction_once(lengths, length):
    documents = numbered(lengths)
    examples = packed(documents, length)
    batch = examples.batch(np.arange(len(examples)))
    real = batch["segments"] > 0
    pairs = sorted(zip(batch["tokens"][real].tolist(), batch["targets"][real].tolist(), strict=True))
    assert pairs == sorted(p for d in documents for p in pairwise(d))
    assert (batch["weights"] == real).all()
    assert ((batch["positions"] == -1) == ~real).all()
    assert not batch["tokens"][~real].any()
    for tokens, positions, segments in zip(*(batch[n] for n in ("tokens", "positions", "segments")), strict=True):
        for segment in set(segments.tolist()) - {0}:
            here = np.flatnonzero(segments == segment)
            assert (np.diff(here) == 1).all()  # side by side
            assert positions[here].tolist() == list(range(len(here)))
            assert (np.diff(tokens[here]) == 1).all()  # of one document, in order
        assert sorted(set(segments.tolist()) - {0}) == list(range(1, segments.max() + 1))


def test_equal_to_best_fit_piece_by_piece():
    """What is placed by length at once lies as if each piece had been placed by itself."""
    rng = np.random.default_rng(3)
    for length in (7, 32, 100):
        lengths = rng.integers(2, length + 1, 300)
        left: list[int] = []
        for size in sorted((n - 1 for n in lengths), reverse=True):
            fits = [i for i, room in enumerate(left) if room >= size]
            if fits:
                left[min(fits, key=left.__getitem__)] -= size
            else:
                left.append(length - size)
        found = pack(lengths, length)
        used = np.add.reduceat(found.count, found.rows[:-1])
        assert sorted(length - used) == sorted(left)


def test_the_same_rows_every_time_in_the_order_of_documents():
    lengths = np.random.default_rng(0).integers(0, 300, 500)
    one, two = pack(lengths, 64), pack(lengths, 64)
    for name in ("document", "start", "count", "rows"):
        assert (getattr(one, name) == getattr(two, name)).all()
    firsts = np.minimum.reduceat(one.document, one.rows[:-1])
    assert (np.diff(firsts) >= 0).all()
    assert one.waste < 0.01
    assert one.waste == 1 - one.used / (len(one) * 64)


def test_nothing_to_pack():
    found = pack(np.array([], int), 8)
    assert (len(found), found.used, found.waste) == (0, 0, 1)
    assert len(pack(np.array([0, 1, 1]), 8)) == 0


def test_answers_are_weights_of_targets():
    examples = packed([[5, 6, 7, 8, 9, 4]], 3, answers=[0, 0, 1, 1, 0, 1])
    batch = examples.batch(np.arange(2))
    assert batch["targets"].tolist() == [[6, 7, 8], [9, 4, 0]]
    assert batch["weights"].tolist() == [[0, 1, 1], [0, 1, 0]]
    assert examples.learned == 3


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=9), st.integers(1, 5), st.integers(1, 3))
def test_rows_without_an_answer_are_no_examples(answers, length, files):
    """Each answer is a target once, in whatever file it is; and what comes before it in its piece is seen."""
    documents = numbered([len(a) for a in answers])
    parts = [
        packed(documents[i::files], length, [said for of in answers[i::files] for said in of]).corpus.files[0]
        for i in range(files)
    ]
    corpus = Corpus.of(parts[:1], all_of).with_all(parts[1:])
    examples = Packed(corpus, length)
    batch = examples.batch(np.arange(len(examples)))
    assert (batch["weights"].sum(axis=1) > 0).all()
    wanted = sorted(
        i for d, a in zip(documents, answers, strict=True) for i, said in zip(d[1:], a[1:], strict=True) if said
    )
    assert sorted(batch["targets"][batch["weights"] > 0].tolist()) == wanted
    assert examples.learned == len(wanted)


def test_specs_say_what_batches_are():
    examples = packed(numbered([9, 4]), 5)
    batch = examples.batch(np.array([1, 0, 1]))
    assert {n: (a.shape[1:], a.dtype.name) for n, a in batch.items()} == examples.specs
    assert (batch["tokens"][0] == batch["tokens"][2]).all()
    with pytest.raises(IndexError):
        examples.batch(np.array([99]))
