"""Pages of docs/ whose Python runs, block after block, and prints what the page says."""

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def run(name: str) -> int:
    """Run `docs/NAME`; how many blocks of what is printed it has.

    Raises:
        AssertionError: it prints something else.
    """
    names: dict[str, Any] = {"__name__": "page"}
    said, compared = "", 0
    for kind, text in BLOCK.findall((DOCS / name).read_text()):
        if kind == "text":
            assert said == text, f"docs/{name} says\n{text}and prints\n{said}"
            compared, said = compared + 1, ""
            continue
        assert (kind, said) == ("python", ""), "what a block prints stands after it"
        out = StringIO()
        with redirect_stdout(out):
            exec(compile(text, f"docs/{name}", "exec"), names)  # noqa: S102
        said = out.getvalue()
    assert said == ""
    return compared
