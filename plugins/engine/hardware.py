"""The device that JAX will find, as far as can be told without it: plans import no framework, and JAX takes
accelerators for its process alone.
"""

import os
import re
from pathlib import Path

NVIDIA = Path("/proc/driver/nvidia/gpus")  # a folder for each GPU


def platform(device: str) -> str:
    """`cpu`, `gpu`, `tpu`.

    Args:
        device: an engine's option.
    """
    if first := re.split("[,:]", _wanted(device))[0]:
        return {"cuda": "gpu", "rocm": "gpu"}.get(first, first)
    return "cpu" if on_host(device) else "tpu" if Path("/dev/accel0").exists() else "gpu"


def on_host(device: str) -> bool:
    """Whether the device's memory is the host's."""
    if wanted := _wanted(device):
        return wanted.startswith("cpu")
    return not any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/accel0", "/dev/kfd"))


def _wanted(device: str) -> str:
    return os.environ.get("JAX_PLATFORMS", "") if device == "auto" else device


def kind_of_gpus() -> str:
    """The kind of all GPUs that NVIDIA's driver knows, which JAX has the same name for; empty where there is none, or
    there are several."""
    try:
        said = [path.read_text(errors="replace") for path in NVIDIA.glob("*/information")]
    except OSError:
        return ""
    kinds = {found[1] for text in said if (found := re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE))}
    return kinds.pop() if len(kinds) == 1 else ""
