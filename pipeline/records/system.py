"""What a run takes of the machine while it is at work: memory and processor of all its processes, devices, disk, net.

`monitor=SECONDS` asks for it; `metrics.system.jsonl` in the run's folder has it, a row of kind `system` every so often.
Where a stage runs in several processes, each writes `metrics.system.RANK.jsonl` of itself as well, and its rows say
which `member` that is: they may be on other machines, and they alone know their devices. It changes nothing that a run
makes, and is no part of its key.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pipeline.errors import StorageError
from pipeline.records import points
from pipeline.records.points import Type, Writer, file_of

PROCESS, KIND = "system", "system"
TYPES = {
    KIND: {
        "rss": Type("B", "lower"), "cpu": Type("%"), "processes": Type(), "threads": Type(),
        "device_memory": Type("B", "lower"), "device_memory_peak": Type("B", "lower"),
        "disk_read": Type("B"), "disk_written": Type("B"), "disk_free": Type("B"),
        "network_received": Type("B"), "network_sent": Type("B"),
    }
}  # fmt: skip


def files(folder: Path) -> list[Path]:
    """In a run's folder, those of what it took."""
    return [file for file in points.files(folder) if points.process_of(file).partition(".")[0] == PROCESS]


class Monitor:
    """What is so now.

    CPU is of all processes together, 100 % a core, since the last look. Disk is what these processes read and wrote
    since the first look, network what the whole machine did: neither system nor library tells it apart by process.
    """

    def __init__(self, folder: Path):
        """
        Args:
            folder: on whose disk free space counts.
        """
        import psutil  # type: ignore[import-untyped]

        self._psutil, self._folder, self._me = psutil, folder, psutil.Process()
        self._known: dict[tuple[int, float], Any] = {}
        self._cpu: dict[tuple[int, float], float] = {}
        self._disk: dict[tuple[int, float], tuple[int, int]] = {}
        self._began: dict[tuple[int, float], tuple[int, int]] = {}
        self._net = psutil.net_io_counters()
        self._when: float | None = None
        self._first = True

    def look(self) -> dict[str, int | float]:
        """Values by name, see `TYPES`; what this machine does not tell is not there."""
        gone = (self._psutil.NoSuchProcess, self._psutil.AccessDenied, self._psutil.ZombieProcess)
        now, found = time.monotonic(), dict.fromkeys(("rss", "processes", "threads"), 0)
        used, there = 0.0, {}
        for process in [self._me, *self._children(gone)]:
            with suppress(*gone):
                with process.oneshot():
                    who, times = (process.pid, process.create_time()), process.cpu_times()
                    found["rss"] += process.memory_info().rss
                    found["threads"] += process.num_threads()
                    found["processes"] += 1
                    there[who] = times.user + times.system
                    with suppress(AttributeError, *gone):  # not on macOS
                        io = process.io_counters()
                        self._began.setdefault(who, (io.read_bytes, io.write_bytes) if self._first else (0, 0))
                        self._disk[who] = io.read_bytes, io.write_bytes
                used += there[who] - self._cpu.get(who, 0.0 if not self._first else there[who])
        row: dict[str, int | float] = dict(found)
        if self._when is not None and now > self._when:
            row["cpu"] = 100 * used / (now - self._when)
        self._when, self._cpu, self._first = now, there, False
        if self._disk:
            for i, name in enumerate(("disk_read", "disk_written")):
                row[name] = sum(io[i] - self._began[who][i] for who, io in self._disk.items())
        with suppress(OSError):
            row["disk_free"] = self._psutil.disk_usage(str(self._folder)).free
        if self._net is not None and (net := self._psutil.net_io_counters()) is not None:
            row["network_received"] = net.bytes_recv - self._net.bytes_recv
            row["network_sent"] = net.bytes_sent - self._net.bytes_sent
        return row | _devices()

    def _children(self, gone: tuple[type[Exception], ...]) -> Sequence[Any]:
        with suppress(*gone):
            return self._me.children(recursive=True)  # type: ignore[no-any-return]
        return ()


def _devices() -> dict[str, int]:
    """Memory of all devices of this process, where JAX is at work already; it is not what sets it to work."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "_backends", None):
        return {}
    found: dict[str, int] = {}
    for device in sys.modules["jax"].local_devices():
        said = device.memory_stats() or {}  # CPUs say nothing
        for name, key in (("device_memory", "bytes_in_use"), ("device_memory_peak", "peak_bytes_in_use")):
            if key in said:
                found[name] = found.get(name, 0) + said[key]
    return found


@contextmanager
def monitored(
    folders: Sequence[Path], seconds: float | None, member: int | None = None
) -> Iterator[Callable[[Path], None]]:
    """Look every so often while this is open, and once as it opens and closes; the same rows go to all folders. What it
    yields looks once more, for a run that is done, and leaves its folder alone from then on.

    Args:
        folders: of runs that share their processes, as jobs of a sweep do.
        seconds: between looks; None: no look at all.
        member: which of a gang this process is; None: the one that a command started, with all that it started itself.

    Raises:
        StorageError: the rows cannot be written; said as it closes, as the work itself goes on without them.
    """
    if seconds is None or not folders:
        yield lambda folder: None
        return
    monitor, done, failed = Monitor(folders[0]), threading.Event(), list[StorageError]()
    process, who = (PROCESS, {}) if member is None else (f"{PROCESS}.{member}", {"member": member})
    writers = {folder: Writer(file_of(folder, process), TYPES) for folder in folders}
    looking = threading.Lock()

    def write(*only: Path) -> None:
        with looking:
            row: dict[str, Any] = {"time": time.time(), **who, **monitor.look()} if writers else {}
            for folder, writer in writers.items():
                if not only or folder in only:
                    writer.row(KIND, row)

    def leave(folder: Path) -> None:
        if folder not in writers:
            return
        try:
            write(folder)
        except StorageError as why:
            failed.append(why)
        with looking:
            writers.pop(folder).close()

    def watch() -> None:
        try:
            write()
            while not done.wait(seconds):
                write()
            write()
        except StorageError as why:
            failed.append(why)

    thread = threading.Thread(target=watch, name="monitor", daemon=True)
    thread.start()
    try:
        yield leave
    finally:
        done.set()
        thread.join()
        for writer in writers.values():
            writer.close()
    if failed:
        raise failed[0]
