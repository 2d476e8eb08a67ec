"""Readable folder names for runs: the choices somebody typed, and nothing that changes no byte of the output."""

import re
from collections.abc import Iterable, Sequence

import xxhash

from pipeline.config.spine import Spine
from pipeline.redact import without_credentials

LONGEST = 120
# Overrides that say how to run, not what to make; a resumed run may differ in them.
HOW = ("dask", "debug", "overwrite", "progress", "hydra", "paths", "digest_inputs", "hub", "monitor")
BARE = ("model", "quant")  # groups whose choice is said without its key; no other is, since both may be called the same
NAMELESS = ("", ".", "..", "model", "model.gguf")  # an export's folder and file are called so, whatever is in it


def _hash(text: str, digits: int) -> str:
    return xxhash.xxh3_64_hexdigest(text.encode())[:digits]


def run_name(overrides: Iterable[str]) -> str:
    """`['+model=gpt_oss', 'quant=mxfp4', 'quant.scale_rule=even']` → `gpt_oss-mxfp4-scale_rule=even`.

    Distinct overrides give distinct names: what has to be dropped or shortened is replaced by a hash of itself.
    """
    parts = []
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if key.partition(".")[0].partition("/")[0] in HOW:
            continue
        short = key.removeprefix("quant.")
        said = f"{key if short in Spine.__dataclass_fields__ else short}={value}"
        said = value if key in BARE and re.fullmatch(r"\w+", value, re.ASCII) else said
        if override.startswith("~"):
            said = f"no_{key}"
        text = without_credentials(said)
        last = place_name(text) if "/" in text and "[" not in text else text
        safe = re.sub(r"[^\w.,=+-]+", "_", last, flags=re.ASCII).strip("_.")
        parts.append(safe if safe == said else f"{safe}~{_hash(override, 6)}")
    name = "-".join(parts) or "default"
    if len(name) > LONGEST:
        name = f"{name[: LONGEST - 9]}~{_hash(name, 8)}"
    return name


def place_name(path: str) -> str:
    """What to call a checkpoint, or anything else, by where it lies: the last name of its path; of our exports, which
    are all called `model`, that of the run."""
    named = [part for part in path.split("/") if part not in NAMELESS]
    return named[-1] if named else path.rstrip("/").rpartition("/")[2]


def short_names(jobs: Sequence[Sequence[str]]) -> list[str]:
    """What tells the jobs of a sweep apart."""
    shared = set.intersection(*map(set, jobs)) if len(jobs) > 1 else set()
    return [" ".join(o for o in job if o not in shared) or " ".join(job) for job in jobs]
