"""Around a run: what of the machine and of the process may change bits, and is in no key."""

import os
import platform
import re
from typing import Any

from pipeline import cpu
from pipeline.redact import hide

# Of frameworks, arithmetic libraries and ourselves; none that is called so holds a secret.
VARIABLES = re.compile(
    r"(JAX|XLA|TF|NVIDIA|CUDA|CUDNN|OMP|MKL|OPENBLAS|BLIS|NUMEXPR|KMP|GOMP|TPU|LIBTPU|NCCL|WEIGHTMILL)_\w+|"
    r"PYTHONHASHSEED|LANG|LC_ALL"
)
SECRET = re.compile(r"TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL")


def environment() -> dict[str, Any]:
    """`system`, `cpu` and `cpus` of the machine; the folder of one's own code, and variables by name."""
    found = {name: hide(os.environ[name]) for name in sorted(os.environ) if VARIABLES.fullmatch(name)}
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu.model(),
        "cpus": len(os.sched_getaffinity(0)),
        "config_dir": os.environ.get("WEIGHTMILL_CONFIG_DIR", ""),
        "variables": {name: text for name, text in found.items() if not SECRET.search(name)},
    }
