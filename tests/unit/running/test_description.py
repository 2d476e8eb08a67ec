"""What is said where a folder holds another run."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.errors import ConfigError
from pipeline.planning.identity import Difference
from pipeline.running.description import Description, of_what_is_made, read_description, refuse

FOUND = [("quantize", Difference("config", f"field {i}", ": a → b")) for i in range(9)]


def _of(*command: str) -> Description:
    return Description("id", {"load": {"key": "k", "parts": {}}}, {}, {}, of_what_is_made(command))


def _said(before: Description, now: Description) -> str:
    with pytest.raises(ConfigError) as why:
        refuse(Path("o/q40"), before, FOUND, now)
    return str(why.value)


def test_two_commands_are_compared_by_what_was_typed() -> None:
    said = _said(
        _of("model.source=m", "quant=q4_0", "export=gguf", "paths.run=o/q40"),
        _of("model.source=m", "quant=int4", "paths.run=./o/q40"),
    )
    assert said == (
        "o/q40 holds another run (quant=q4_0 export=gguf; this one: quant=int4). paths.run=DIR puts this one "
        "elsewhere, overwrite=true replaces it"
    )


def test_what_one_command_alone_says() -> None:
    assert "another run (this one has seed=7)" in _said(_of("model=m"), _of("model=m", "seed=7"))
    assert "another run (of seed=7)" in _said(_of("model=m", "seed=7"), _of("model=m"))


@pytest.mark.parametrize(("before", "now"), [((), ("quant=int4",)), (("quant=int4",), ("quant=int4",))])
def test_else_a_few_differences_are_named(before: tuple[str, ...], now: tuple[str, ...]) -> None:
    said = _said(_of(*before), _of(*now))
    assert "field 2" in said
    assert "field 3" not in said
    assert "and 6 more" in said


def test_the_command_is_kept(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(asdict(_of("quant=int4"))))
    found = read_description(tmp_path)
    assert found is not None
    assert found.command == ["quant=int4"]
