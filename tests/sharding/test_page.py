"""docs/mesh.md: its Python runs, in order, and prints what the page says; its pictures are those of conf/mesh."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cases import pages
from tests.sharding import pictures

PAGE = pictures.PAGE.read_text(encoding="utf-8")
MOST_NBYTES = 60_000


def test_every_block_runs_and_prints_what_the_page_says() -> None:
    assert pages.run("mesh.md") == 4


def test_the_page_has_a_picture_of_every_kind() -> None:
    assert sorted(re.findall(r"^`mesh=(\w+)`", PAGE, re.M)) == list(pictures.KINDS)
    assert sorted(re.findall(r"\]\(mesh-(\w+)\.png\)", PAGE)) == list(pictures.KINDS)
    assert sorted(p.name for p in pictures.DOCS.glob("mesh-*.png")) == [f"mesh-{kind}.png" for kind in pictures.KINDS]


@pytest.mark.parametrize("kind", pictures.KINDS)
def test_a_picture_is_what_is_drawn_now(kind: str, tmp_path: Path) -> None:
    """Fonts and antialiasing may be another library's; blocks and their colours may not."""
    pictures.picture(kind, tmp_path / "now.png")
    now, then = (np.asarray(Image.open(p).convert("RGB"), "f4") for p in (tmp_path / "now.png", pictures.path(kind)))
    assert abs(now - then).mean() < 2, "python -m tests.sharding.pictures draws them anew"
    assert pictures.path(kind).stat().st_size < MOST_NBYTES
