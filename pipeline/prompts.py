"""What is to be continued: `prompt`, a text; `prompts`, a list of them; `prompt_file`, a file or standard input; or
`prompts_file`, a file with a text on each line.

Files are read when the config is resolved, so that their content is part of what a run is.
"""

import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.units import show_bytes

MOST_NBYTES = 16 << 20  # a hundred times the longest context there is
STDIN = "-"


def continued(prompt: Any, prompts: Any, prompt_file: Any, prompts_file: Any = None) -> Any:
    """The text or texts; of the four, those that are not set are None, and `prompt` has a default.

    Raises:
        ConfigError: as `read`; `prompts` that are no list.
    """
    if prompts is not None and (isinstance(prompts, str) or not hasattr(prompts, "__iter__")):
        raise ConfigError(f"""prompts={prompts!r}: a list is expected, such as prompts='["One text", "Another"]'""")
    if prompts_file is not None:
        return several(str(prompts_file))
    return read(str(prompt_file)) if prompt_file is not None else prompt if prompts is None else prompts


def several(file: str) -> list[str]:
    """The texts in a file, one on each line that is not empty; of a `.jsonl` each a JSON text, or an object with one
    under `prompt`.

    Raises:
        ConfigError: as `read`; there is none; or a line of JSON is neither.
    """
    found = []
    for number, line in enumerate(read(file, key="prompts_file").splitlines(), 1):
        if not line.strip():
            continue
        if not file.endswith(".jsonl"):
            found.append(line)
            continue
        try:
            given = json.loads(line)
        except ValueError as why:  # whose own text counts lines anew
            said = f"{why.msg} at character {why.colno}" if isinstance(why, json.JSONDecodeError) else why
            raise ConfigError(f"prompts_file={file}: line {number} is no JSON: {said}") from None
        text = given.get("prompt") if isinstance(given, dict) else given
        if not isinstance(text, str) or not text:
            raise ConfigError(f"""prompts_file={file}: line {number}: a text or {{"prompt": "…"}} is expected""")
        found.append(text)
    if not found:
        raise ConfigError(f"prompts_file={file}: holds no prompt; one is expected on each line")
    return found


def read(file: str, key: str = "prompt_file") -> str:
    """The text in a file, or for `-` on standard input, without the line break that ends it.

    Raises:
        ConfigError: it cannot be read, is no UTF-8, or larger than any prompt.
    """
    where = f"{key}={file}"
    try:
        content = _stdin() if file == STDIN else _read(Path(os.path.expanduser(file)))
        text = content.decode()
    except (OSError, ValueError, RuntimeError) as why:  # RuntimeError: ~ of nobody
        said = why.strerror if isinstance(why, OSError) else str(why)
        raise ConfigError(f"{where}: cannot be read: {said}") from None
    if len(content) > MOST_NBYTES:
        raise ConfigError(f"{where}: is larger than {show_bytes(MOST_NBYTES)}, the most that a prompt may be")
    return text.removesuffix("\n").removesuffix("\r")


@cache
def _stdin() -> bytes:
    """Read once: the jobs of a sweep all continue the same text."""
    return sys.stdin.buffer.read(MOST_NBYTES + 1)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MOST_NBYTES + 1)
