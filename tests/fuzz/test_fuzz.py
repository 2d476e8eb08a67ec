"""Some seconds of each fuzzer, always on the same inputs; and that the fuzzers find what there is to find."""

from pathlib import Path

import pytest

from tests.fuzz import driver

COUNTS = {
    "safetensors_header": 1500, "gguf": 150, "npy": 500, "orbax": 100, "config_json": 150, "tokenizer_files": 150,
    "chat_templates": 30,
}  # fmt: skip


@pytest.mark.parametrize("target", driver.TARGETS)
def test_everything_is_read_or_refused(target: str, thorough: bool) -> None:
    count = COUNTS[target] if thorough else COUNTS[target] // 2
    result = driver.fuzz(target, count)
    assert not result.findings, "\n".join(f"{n}: {what}" for n, what in result.findings.items())
    assert result.inputs == count
    assert result.accepted + result.refused == result.inputs
    assert min(result.accepted, result.refused) > result.inputs / 100  # mutators that go neither too far nor nowhere
    assert result.most < 512 << 20


def test_inputs_follow_from_their_numbers() -> None:
    for target in driver.TARGETS:
        assert driver.make(target, 7) == driver.make(target, 7)
        assert any(driver.make(target, i) != driver.make(target, 7) for i in range(7))


def test_a_fuzzer_finds_exceptions_hangs_crashes_and_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`tests.fuzz.broken` does all of them; each is found, saved, and the inputs after it are run."""
    monkeypatch.setattr(driver, "HANG_S", 3.0)
    result = driver.fuzz("broken", 8, saved=tmp_path)
    found = result.findings
    assert set(found) == {1, 3, 4, 6}
    assert "ZeroDivisionError" in found[1]
    assert found[3].startswith("hang")
    assert found[4].startswith("crash: the process ended with")
    assert "MemoryError" in found[6]
    assert (result.inputs, result.accepted, result.refused) == (8, 3, 1)
    assert (tmp_path / "broken-3" / "f").read_bytes() == b"input"
    assert "3 crashes    1 hangs" in str(result)
