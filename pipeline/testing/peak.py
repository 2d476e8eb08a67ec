"""Peak memory of a command and everything it starts, sampled from outside so that nothing has to cooperate.

Resident bytes are summed over the process tree, 20 times a second. Pages that processes share (libraries) count once
for each, so the sum is an upper bound; page cache is nobody's.
"""

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Peak:
    """What was seen.

    Attributes:
        returncode: of the command.
        seconds: wall time.
        tree_nbytes: largest sum of resident bytes over all its processes at one moment.
        process_nbytes: largest high-water mark (VmHWM) of each process, largest first.
        output: stdout and stderr together.
    """

    returncode: int
    seconds: float
    tree_nbytes: int
    process_nbytes: tuple[int, ...]
    output: str


def watch(command: Sequence[str], **popen: Any) -> Peak:
    """Run `command` to its end; `popen` goes to `subprocess.Popen`."""
    import tempfile

    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True, **popen)  # noqa: S603  whose job it is
        tree, marks, ended = [0], dict[int, int](), threading.Event()
        root = psutil.Process(child.pid)

        def look() -> None:  # aside, so that the command's end is seen when it comes
            while not ended.is_set():
                tree.append(_sample(root, marks))
                ended.wait(EVERY_S)

        aside = threading.Thread(target=look)
        aside.start()
        try:
            child.wait()
            seconds = time.perf_counter() - start
        finally:
            ended.set()
            aside.join()
        output.seek(0)
        return Peak(child.returncode, seconds, max(tree), tuple(sorted(marks.values(), reverse=True)), output.read())


def _sample(root: psutil.Process, marks: dict[int, int]) -> int:
    """Resident bytes of the tree now; notes each process's high-water mark."""
    try:
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    total = 0
    for process in tree:
        status = _status(process.pid)
        total += status.get("VmRSS", 0)
        marks[process.pid] = max(marks.get(process.pid, 0), status.get("VmHWM", 0))
    return total


def _status(pid: int) -> Mapping[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return {}
    return {key: int(value.split()[0]) << 10 for key, _, value in (i.partition(":") for i in lines) if key[:2] == "Vm"}
