"""llm-compressor, a peer of `flow=bench_quality`: what it makes of the same matrices, on the same token ids.

It needs a torch and a compressed-tensors of its own, so it runs in a Python of its own: `plugins.bench.oneshot` there,
and what that has written is opened here as any other compressed-tensors export.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipeline.bench.quality import Given, Rounded
from pipeline.errors import ConfigError, StageError, short
from pipeline.stage import Checkpoint
from pipeline.tensors.spec import TensorSpec
from plugins.bench import oneshot
from plugins.bench.restated import group_of

PACKAGE = "llmcompressor"
SETTING = "bench.llm_compressor"
ASKED = f"from importlib.metadata import version; print(version({PACKAGE!r}))"
SAID = 500  # last characters of what it says when it fails
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class LlmCompressor:
    """See `pipeline.bench.quality.Rounder`.

    Attributes:
        method: gptq (`GPTQModifier`), or awq (`AWQModifier`, then rounding).
        python: the program of a Python that has it; None: this one.
        bits: of an integer.
        group: columns that share a scale, and fewer in rows that these do not divide, as ours have.
        symmetric: without zero points.
        dtype: what the model is loaded in, and scales are stored in.
        damping, actorder: of gptq; its own defaults. None: columns in the order in which they lie.
        batch: windows at once.

    Raises:
        ConfigError: `python` is no program, or has no llm-compressor.
    """

    method: Literal["gptq", "awq"]
    python: str | None = None
    bits: int = 4
    group: int = 128
    symmetric: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    damping: float = 0.01
    actorder: Literal["static"] | None = "static"
    batch: int = 8

    def __post_init__(self) -> None:
        if self.python is not None:
            version_in(self.python)

    @property
    def needs(self) -> Mapping[str, str]:
        how = f"pip install {PACKAGE} in an environment of its own, and {SETTING}=PYTHON of that"
        return {} if self.python is not None else {PACKAGE: how}

    @property
    def reads(self) -> str | None:
        return "hf"

    def why_not(self, checkpoint: Checkpoint) -> str:
        return ""

    def rounded(self, checkpoint: Checkpoint, names: Sequence[str], given: Given, place: Path) -> Rounded:
        assert given.source is not None
        assert checkpoint.opener is not None
        specs, out = checkpoint.store.specs, place / "compressed"
        self.compress(given.source, out, given.rows, {n: specs[n] for n in names}, place)
        found = checkpoint.opener(out)
        there = found.store.specs
        if left := [n for n in names if n not in there or there[n].scheme is None]:
            raise StageError(f"llm-compressor did not round {left[0]}")
        others = [n for n in there if n in specs and n not in names and there[n].scheme is None]
        changed = [n for n in others if not _same(checkpoint.store, found.store, n, self.dtype)]
        return Rounded(found, {n: found.stored[n] for n in names}, tuple(changed))

    def compress(self, source: Path, out: Path, rows: Any, specs: Mapping[str, TensorSpec], place: Path) -> None:
        """Write `out`, a folder as compressed-tensors has it.

        Args:
            source: folder of the model, as transformers has it.
            rows: token ids [windows, tokens].
            specs: of the matrices that are to be rounded, by name.
            place: a folder for what it is told.

        Raises:
            StageError: it failed; says how.
        """
        groups: dict[int, list[str]] = {}
        for name, spec in specs.items():
            groups.setdefault(group_of(spec.shape[-1], self.group), []).extend(_modules(name))
        np.save(place / "rows.npy", np.asarray(rows, np.int64))
        settings = {
            "model": str(source), "out": str(out), "rows": str(place / "rows.npy"), "method": self.method,
            "dtype": self.dtype, "groups": groups, "bits": self.bits, "symmetric": self.symmetric,
            "damping": self.damping, "actorder": self.actorder, "batch": self.batch,
        }  # fmt: skip
        (place / "settings.json").write_text(json.dumps(settings))
        done = subprocess.run(  # noqa: S603  the program that the user named
            [self.python or sys.executable, "-I", str(Path(oneshot.__file__).absolute()), str(place / "settings.json")],
            cwd=place, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        sys.stdout.write(done.stdout)
        if done.returncode:
            raise StageError(f"llm-compressor: exit code {done.returncode}: {done.stdout[-SAID:]}")


@cache
def version_in(python: str) -> str:
    """Which llm-compressor a Python has.

    Raises:
        ConfigError: it is no program, or has none.
    """
    allowed = f"allowed: the program of a Python with pip install {PACKAGE}, or null"
    try:
        asked = subprocess.run([python, "-I", "-c", ASKED], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as why:
        raise ConfigError(f"{SETTING}={python!r}: {why.strerror}; {allowed}") from None
    if asked.returncode:
        last = short((asked.stderr.strip().splitlines() or ["it said nothing"])[-1], SAID)
        raise ConfigError(f"{SETTING}={python!r}: has no {PACKAGE} ({last}); {allowed}")
    return asked.stdout.strip()


def _environment() -> dict[str, str]:
    """Ours, without what would have it import ours, and without the network."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | OFFLINE


def _modules(name: str) -> list[str]:
    """What llm-compressor calls the modules of a matrix; of experts, each of which is a module there, a pattern."""
    module = name.removesuffix(".weight")
    stem, _, part = module.rpartition(".")
    if not stem.endswith(".experts"):
        return [module]
    parts = {"gate_up_proj": "(gate|up)_proj"}.get(part, part)
    return [rf"re:.*{stem.replace('.', chr(92) + '.')}\.\d+\.{parts}$"]


def _same(ours: Any, theirs: Any, name: str, dtype: str) -> bool:
    whole = tuple(slice(0, d) for d in ours.specs[name].shape)
    a, b = (np.asarray(s.read(name, whole), np.float32) for s in (ours, theirs))
    near = 2.0**-8 if dtype == "bfloat16" else 0.0  # what loading it in fewer digits alone changes
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= near * np.abs(a)))
