"""Pages of docs/ whose Python runs, block after block, and prints what the page says; and each as a notebook.

`python -m tests.cases.pages` makes the notebooks anew, of what the tests have run, and draws their plots.
"""

import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
EITHER = re.compile(r"^```(\w+)\n((?:(?!```).*\n)*)```$|((?:^(?!```).*\n)+)", re.M)  # of code, or of prose
NOTEBOOKS = {"mesh": "mesh.md", "live": "live.md", "runs": "runs.md", "kernels": "kernels_notebook.md"}
"""Pages by the notebook that each is. The last is read as a notebook alone: it has formulas, for which a browser would
fetch what sets them."""


def _close() -> None:
    # As `run`, it imports what draws, and this module does not: most who import it run no page.
    import matplotlib.pyplot as plt

    plt.close("all")


def run(name: str, shown: Callable[[], None] = _close) -> int:
    """Run `docs/NAME`; how many blocks of what is printed it has. `shown` is what it does to show a plot.

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
        with redirect_stdout(out), mock.patch("matplotlib.pyplot.show", shown):
            exec(compile(text, f"docs/{name}", "exec"), names)  # noqa: S102
        said = out.getvalue()
    assert said == ""
    return compared


def notebook(page: str) -> str:
    """A page of Markdown as a Jupyter notebook: its Python as cells, with what the page says that they print."""
    cells: list[dict[str, Any]] = []
    for kind, fenced, prose in EITHER.findall(page):
        text = (fenced or prose).strip("\n")
        if kind == "text":
            cells[-1]["outputs"] = [{"name": "stdout", "output_type": "stream", "text": _lines(f"{text}\n")}]
        elif text:
            of = {"cell_type": "code", "execution_count": None, "outputs": []} if kind else {"cell_type": "markdown"}
            cells.append({**of, "id": f"cell-{len(cells)}", "metadata": {}, "source": _lines(text)})
    python = {"display_name": "Python 3", "language": "python", "name": "python3"}
    found = {"cells": cells, "metadata": {"kernelspec": python}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def draw(page: str, notebook: str) -> None:
    """The pictures of a page that shows plots: `docs/NOTEBOOK-1.png` and so on."""
    import matplotlib.pyplot as plt

    count = 0

    def shown() -> None:
        nonlocal count
        count += 1
        plt.savefig(DOCS / f"{notebook}-{count}.png", metadata={"Software": None})
        _close()

    run(page, shown)


if __name__ == "__main__":
    for name, page in NOTEBOOKS.items():
        text = (DOCS / page).read_text(encoding="utf-8")
        (DOCS / f"{name}.ipynb").write_text(notebook(text), encoding="utf-8")
        if "plt.show" in text:
            draw(page, name)
