"""Peak memory of a command and everything it starts, sampled from outside so that nothing has to cooperate.

Resident bytes are summed over the process tree, 20 times a second. Pages that processes share (libraries) count once
for each, so the sum is an upper bound; page cache is nobody's.
"""

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

EVERY_S = 0.05


@dataclass(slots=True)
class Tree:
    """What is seen of a process and of all that it starts, while the block runs.

    Attributes:
        pid: of the process.
        every_s: seconds between one look and the next.
        nbytes: largest sum of resident bytes at one moment.
        highest_nbytes: the same of high-water marks (VmHWM), which miss nothing between two looks.
        marks: high-water mark of each process, by pid.
    """

    pid: int
    every_s: float = EVERY_S
    nbytes: int = 0
    highest_nbytes: int = 0
    marks: dict[int, int] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _aside: threading.Thread | None = None

    def __enter__(self) -> "Tree":
        self._aside = threading.Thread(target=self._look)  # aside, so that the end is seen when it comes
        self._aside.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._aside is not None
        self._ended.set()
        self._aside.join()

    def _look(self) -> None:
        try:
            root = psutil.Process(self.pid)
        except psutil.NoSuchProcess:
            return
        while not self._ended.is_set():
            self._sample(root)
            self._ended.wait(self.every_s)

    def _sample(self, root: psutil.Process) -> None:
        try:
            tree = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        seen = [_status(process.pid) for process in tree]
        for process, status in zip(tree, seen, strict=True):
            self.marks[process.pid] = max(self.marks.get(process.pid, 0), status.get("VmHWM", 0))
        self.nbytes = max(self.nbytes, sum(status.get("VmRSS", 0) for status in seen))
        self.highest_nbytes = max(self.highest_nbytes, sum(status.get("VmHWM", 0) for status in seen))


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
        with Tree(child.pid) as tree:
            child.wait()
            seconds = time.perf_counter() - start
        output.seek(0)
        marks = tuple(sorted(tree.marks.values(), reverse=True))
        return Peak(child.returncode, seconds, tree.nbytes, marks, output.read())


def _status(pid: int) -> Mapping[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return {}
    return {key: int(value.split()[0]) << 10 for key, _, value in (i.partition(":") for i in lines) if key[:2] == "Vm"}
