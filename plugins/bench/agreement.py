"""Whether llama.cpp and Weightmill run the same model: how far their logits of one text lie apart.

llama.cpp rounds activations to int8 before it multiplies, and keeps keys and values in fp16: a hundredth of the spread
of logits is usual, more where another expert was chosen for it, and far more is another model.
"""

import sys
from pathlib import Path

import numpy as np

from pipeline.planning.rates import cores
from plugins.bench.contenders import run, tokens
from plugins.bench.peers import LOGITS

TOKENS = 24


def agreement(source: Path, folder: Path) -> dict[str, float]:
    """Of a GGUF file.

    Args:
        folder: for what both say.

    Returns:
        `apart`: root mean square of the difference, in standard deviations of a token's logits, median over tokens.
        `same`: fraction of tokens after which both take the same one.

    Raises:
        SystemExit: one failed, with what it said.
    """
    said, theirs_said = folder / "ours.npz", folder / "theirs.bin"
    run([sys.executable, "-c", "from plugins.bench.agreement import write; write()", source, said], cores())
    with np.load(said) as file:
        ids, ours = file["ids"], file["logits"]
    run([LOGITS, source, cores(), theirs_said, *ids], cores())
    theirs = np.fromfile(theirs_said, np.float32).reshape(ours.shape)
    apart = np.sqrt(np.mean((ours - theirs) ** 2, axis=-1)) / ours.std(axis=-1)
    return {"apart": float(np.median(apart)), "same": float(np.mean(ours.argmax(-1) == theirs.argmax(-1)))}


def write() -> None:
    """What Weightmill says; the command line: GGUF file, where to write."""
    import pipeline

    source, to = sys.argv[1:]
    model = pipeline.load_model(source)
    ids = tokens(model.runtime.vocab, TOKENS)
    np.savez(to, ids=np.asarray(ids), logits=model.taps(ids)["logits"])
