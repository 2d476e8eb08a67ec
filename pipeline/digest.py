"""Digests and identities. Neither may cost more than the disk: xxh3 runs at memory speed on one core."""

import json
import os
from pathlib import Path
from typing import Any

import xxhash

from pipeline.errors import SourceError
from pipeline.stage import Digested

BUFFER_NBYTES = 4 << 20


def digest_file(path: Path, *, sync: bool = False) -> Digested:
    """Digest of a whole file, read in small buffers; `sync` also makes it durable first.

    Raises:
        SourceError: the file cannot be read.
    """
    hasher = xxhash.xxh3_128()
    nbytes = 0
    buffer = memoryview(bytearray(BUFFER_NBYTES))
    try:
        with path.open("rb", buffering=0) as file:
            if sync:
                os.fsync(file.fileno())
            while got := file.readinto(buffer):
                hasher.update(buffer[:got])
                nbytes += got
    except OSError as why:
        raise SourceError(f"{path}: {why.strerror}") from None
    return Digested(path, nbytes, hasher.hexdigest())


def identity(value: Any) -> str:
    """xxh3-128 of `value` as canonical JSON: equal values, equal identities, on any machine and any run."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    return xxhash.xxh3_128_hexdigest(text.encode())


def code_version(*roots: Path) -> str:
    """Identity of all Python sources under `roots`: what a chunk's bytes depend on besides config and inputs."""
    hasher = xxhash.xxh3_128()
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            hasher.update(path.relative_to(root).as_posix().encode())
            hasher.update(path.read_bytes())
    return hasher.hexdigest()
