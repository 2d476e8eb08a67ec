"""What energy a machine takes while something is measured, where it says: Intel's and AMD's RAPL, NVIDIA's NVML.

Sources: Linux, Documentation/power/powercap/powercap.rst; NVML, `nvmlDeviceGetTotalEnergyConsumption` (millijoules).
"""

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
PACKAGES = "intel-rapl:[0-9]"  # of processors, AMD's too; parts of these have another `:`, and are in them


class Energy:
    """Joules that the machine takes in the block, of everybody on it.

    Attributes:
        joules: None: nothing says so.
        why: why not.
    """

    joules: float | None = None
    why: str = ""

    def __init__(self, powercap: Path = POWERCAP):
        self._zones = sorted(powercap.glob(PACKAGES))
        self._begun: dict[Path, int] = {}
        self._devices: dict[int, int] = {}

    def __enter__(self) -> "Energy":
        try:
            self._begun = {zone: _number(zone / "energy_uj") for zone in self._zones}
        except OSError as why:
            self.why = f"{why.filename}: {why.strerror}"
        self._devices = _devices()
        if not self._begun and not self._devices and not self.why:
            self.why = f"no processor's energy under {POWERCAP}, and no device that NVML knows"
        return self

    def __exit__(self, *_: object) -> None:
        if not self._begun and not self._devices:
            return
        micro, now = 0, _devices()
        if now.keys() != self._devices.keys():  # the sum would be of some of them
            self.why = f"NVML knew of devices {[*self._devices]} at first, and of {[*now]} in the end"
            return
        try:
            for zone, before in self._begun.items():
                took = _number(zone / "energy_uj") - before
                micro += took if took >= 0 else took + _number(zone / "max_energy_range_uj")  # it began anew
        except OSError as why:
            self.why = f"{why.filename}: {why.strerror}"
            return
        milli = sum(now[i] - before for i, before in self._devices.items())
        self.joules = micro / 1e6 + milli / 1e3


def _number(file: Path) -> int:
    return int(file.read_text())


def _devices() -> dict[int, int]:
    """Millijoules that each device has taken since its driver was loaded."""
    if find_spec("pynvml") is None:
        return {}
    import pynvml

    found: dict[int, int] = {}
    with suppress(pynvml.NVMLError):  # no driver, or a device that does not say
        pynvml.nvmlInit()
        for i in range(pynvml.nvmlDeviceGetCount()):
            found[i] = pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(i))
    return found
