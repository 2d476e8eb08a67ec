"""`python -m tests.sharding.pictures` draws docs/mesh-….png anew, a small model over every mesh of conf/mesh."""

from pathlib import Path

from PIL import Image

from pipeline.mesh import Mesh
from pipeline.planning.layout import lay_out
from pipeline.reporting.mesh import divided, show_mesh
from pipeline.reporting.mesh_picture import Drawing, draw
from tests.cases import model_runs
from tests.sharding import toys

DOCS = model_runs.CONF.parent / "docs"
PAGE = DOCS / "mesh.md"
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


if __name__ == "__main__":
    DOCS.mkdir(exist_ok=True)
    for kind in KINDS:
        picture(kind, path(kind))
