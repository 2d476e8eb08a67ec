"""What a machine says of its CPUs, as Linux has it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline import cpu
from pipeline.planning import rates

HIDDEN = """processor\t: {n}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: {model}
model name\t: Intel(R) Xeon(R) Processor
stepping\t: 8
flags\t\t: fpu {flags}
"""


def _asked_anew() -> None:
    for asked in (cpu.instructions, cpu.model, cpu.family, cpu.numbers, rates.machine):
        asked.cache_clear()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    _asked_anew()


def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str) -> str:
    (tmp_path / "cpuinfo").write_text(said)
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    _asked_anew()
    return rates.machine()


def test_processors_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hypervisor calls all of them the same: rates and benchmarks of one are not those of another."""
    kinds = ((143, "avx2 amx_bf16"), (143, "avx2"), (207, "avx2"))
    texts = ["".join(HIDDEN.format(n=n, model=model, flags=flags) for n in range(2)) for model, flags in kinds]
    found = [machine(tmp_path, monkeypatch, text) for text in texts]
    assert found[0].startswith(f"Intel(R) Xeon(R) Processor 6/143/8 × {rates.cores()}, AMX")
    assert len({*found}) == len(kinds)


def test_one_without_numbers_is_called_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"
    assert machine(tmp_path, monkeypatch, said).startswith(f"0xd0c × {rates.cores()}")
