"""How text is split before byte pairs are merged: a pattern for each family, which no vocabulary of ranks states.

Sources: tiktoken_ext/openai_public.py (o200k), the tokenizer.json of Llama 3 (cl100k's), Qwen 2 and Mistral Nemo.
"""

from typing import Final

CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    return CONTRACTIONS + rf"|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|" + TAIL


def _cased(digits: str, contractions: str) -> str:
    return "|".join(
        (
            rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{contractions}",
            rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{contractions}",
            digits,
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )
    )


ONE_DIGIT, THREE_DIGITS = r"\p{N}", r"\p{N}{1,3}"
CL100K: Final = _words(THREE_DIGITS)
QWEN: Final = _words(ONE_DIGIT)
O200K: Final = _cased(THREE_DIGITS, f"{CONTRACTIONS}?")
TEKKEN: Final = _cased(ONE_DIGIT, "")
