"""`python -m tests.sharding.pictures` draws docs/mesh-….png anew, a small model over every mesh of conf/mesh, and makes
docs/mesh.ipynb of docs/mesh.md, which a test has run."""

import json
import re
from pathlib import Path
from typing import Any

from PIL import Image

from pipeline.mesh import Mesh
from pipeline.planning.layout import lay_out
from pipeline.reporting.mesh import divided, show_mesh
from pipeline.reporting.mesh_picture import Drawing, draw
from tests.cases import model_runs
from tests.sharding import toys

DOCS = model_runs.CONF.parent / "docs"
PAGE, NOTEBOOK = DOCS / "mesh.md", DOCS / "mesh.ipynb"
BLOCK = re.compile(r"^```(\w+)\n((?:(?!```).*\n)*)```$|((?:^(?!```).*\n)+)", re.M)  # of code, or of prose
KINDS = tuple(sorted(p.stem for p in (model_runs.CONF / "mesh").glob("*.yaml")))
FOUR = {"data": {"data": 4}, "fsdp": {"fsdp": 4}, "tensor": {"tensor": 4}, "expert": {"expert": 4}}
COLOURS = 64  # are enough, and a quarter of the bytes
TOY = "qwen3_moe"
DRAWN = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.experts.0.down_proj.weight")


def path(kind: str) -> Path:
    return DOCS / f"mesh-{kind}.png"


def picture(kind: str, target: Path) -> None:
    """Of one option, with four devices or as many as it has."""
    mesh = toys.mesh(kind, **FOUR.get(kind, {}))
    parameters = toys.parameters_of(toys.CONFIGS[TOY])
    used = {"batch", *(axis for p in parameters for axis in p.axes)}
    mesh = Mesh(mesh.axes, {k: v for k, v in mesh.rules.items() if k in used}, mesh.stored, mesh.replicated_most)
    layouts = lay_out(mesh, parameters, toys.specs(TOY))
    drawings = []
    for p in (p for p in parameters if p.name in DRAWN):
        title = p.name.removeprefix("model.layers.0.").replace(".0.", ".*.")
        drawings.append(Drawing(title, (divided(p, layouts[p.name]),), p.axes, layouts[p.name]))
    draw(target, f"mesh={kind}: {show_mesh(mesh)}", mesh, drawings)
    with Image.open(target) as drawn:
        small = drawn.convert("RGB").quantize(COLOURS)
    small.save(target, optimize=True)


def notebook(page: str) -> str:
    """A page of Markdown as a Jupyter notebook: its Python as cells, with what the page says that they print."""
    cells: list[dict[str, Any]] = []
    for kind, fenced, prose in BLOCK.findall(page):
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


if __name__ == "__main__":
    DOCS.mkdir(exist_ok=True)
    for kind in KINDS:
        picture(kind, path(kind))
    NOTEBOOK.write_text(notebook(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
