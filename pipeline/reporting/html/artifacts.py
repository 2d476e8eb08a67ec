"""What a run left on disk, each as a link where the page and it move together, and by its path where they do not."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from markupsafe import Markup

from pipeline.errors import SourceError
from pipeline.figures import Figure
from pipeline.reporting.html.markup import clean, el, name
from pipeline.reporting.html.parts import Table
from pipeline.reporting.html.told import Told
from pipeline.reporting.runs import KINDS, PROFILE, files_of, folder_nbytes

KEPT = ".results"  # below the folder of outputs: what stages gave, under the keys of it
VIEWERS = {
    KINDS["trace.json"]: "trace, for ui.perfetto.dev or chrome://tracing",
    **dict.fromkeys((PROFILE, KINDS["trace.jax"]), "profiles of jax.profiler, for XProf"),
}
LAST = ("record", "picture", "page")
WEIGHTS = ("*.safetensors", "adapter")


def table(run: Told) -> Table | None:
    """Everything in its folder, its exports elsewhere, traces that a sweep shares, and weights that were trained."""
    rows = [
        (linked(path, run), what, Figure(nbytes, "B") if nbytes is not None else None)
        for path, what, nbytes in sorted(_all(run), key=lambda one: one[1] in LAST)
    ]
    if not rows:
        return None
    where = "" if run.page is not None else "Links are in pages that lie with the runs."
    return Table("What the run left", ("", "what", "size"), rows, where)


def linked(path: Path, run: Told) -> Markup:
    """A link, relative to the page; the path where the page may be moved without what it leads to."""
    text = os.path.relpath(path, run.run.folder)
    text = str(path) if text.startswith(os.pardir) else text
    if path.is_dir():
        text = f"{text}/"
    page, outputs = run.page, run.outputs
    if page is None or not path.exists() or not all(p == outputs or outputs in p.parents for p in (page, path)):
        return el("code", name(text if page is not None and run.run.folder == page else str(path)))
    href = os.path.relpath(path, page)
    if clean(href) != href:  # a secret in it, or what no link should have
        return el("code", name(text))
    return el("a", name(href if text == str(path) else text), href=f"{quote(href)}{'/' * path.is_dir()}")


def _all(run: Told) -> Iterator[tuple[Path, str, int | None]]:
    try:
        found = files_of(run.run)
    except (OSError, SourceError):  # gone meanwhile, or its record is none of ours, which `Told.problems` has
        found = []
    for file, what, nbytes in found:
        path = Path(os.path.normpath(run.run.folder / file))
        if path != run.page_file and not path.name.startswith("."):  # locks
            yield path, VIEWERS.get(what, what), nbytes
    for stage, node in run.description.get("nodes", {}).items():
        key = str((node.get("found") or {}).get("key") or node.get("key"))
        folder = run.outputs / KEPT / key
        for weights in [p for pattern in WEIGHTS for p in sorted(folder.glob(pattern))] if key.isalnum() else []:
            nbytes = folder_nbytes(weights) if weights.is_dir() else weights.stat().st_size
            yield weights, f"{'adapter' if weights.is_dir() else 'weights'} that {stage} gave", nbytes
