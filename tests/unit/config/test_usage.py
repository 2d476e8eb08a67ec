"""What help says of verbs, and how it is folded."""

import pytest

from pipeline.__main__ import _main
from pipeline.config import usage, verbs


@pytest.mark.parametrize("verb", verbs.SHORT)
def test_usage_fits_eighty_columns(verb: str) -> None:
    told = usage.usage(verb).splitlines()
    assert told[0].startswith(f"weightmill {verb} {verbs.SHORT[verb].shown}")
    assert max(map(len, told)) <= 80
    assert all(any(option in text for text in told) for option in verbs.SHORT[verb].takes)


def test_a_chat_is_offered_one_quantization() -> None:
    assert "[--quant NAME]" in usage.usage("chat")
    assert "[--quant NAME[,NAME…]]" in usage.usage("generate")


def test_no_name_is_broken_at_its_hyphen() -> None:
    assert "[--max-tokens MAX-TOKENS]" in usage.usage("generate")


def test_help_of_a_verb_is_its_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert _main(["help", "plan"]) == 0
    assert capfd.readouterr().out == usage.usage("plan") + "\n"


@pytest.mark.parametrize("verb", usage.OTHERS)
def test_every_verb_says_what_it_takes(verb: str) -> None:
    told = usage.usage(verb).splitlines()
    assert told[0].startswith(f"weightmill {verb}")
    assert max(map(len, told)) <= 80


def test_help_is_folded_at_spaces_and_commas() -> None:
    text = "  key: " + ",".join(f"${{a.b{n}}}" for n in range(30))
    found = usage.folded(text)
    assert max(map(len, found)) <= 80
    assert "".join(line.strip() for line in found) == text.strip()
    assert usage.folded("a b") == ["a b"]
    assert usage.folded("x" * 90) == ["x" * 90], "which nothing can fold"
