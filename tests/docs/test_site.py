"""The site of docs/ is built without a warning, and has a place for every page, group and public name."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.config import reference
from tests.cases import pages
from tests.golden import public

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sphinx's own check is that every page is reached and every link leads somewhere: `-W`."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", "docs", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_every_group_and_setting_is_in_the_configuration(site: Path) -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    assert re.findall(r"^```\{configuration\} ?(.*)$", page, re.M) == ["", *reference.groups()]
    html = (site / "configuration.html").read_text(encoding="utf-8")
    for key in ("quant.scale_rule", "train.save.every", "evaluate.windows.window", "paths.run", "dask.memory"):
        assert f">{key}<" in html
    assert "${kernels" not in html, "what hands on what is set elsewhere is left out"


def test_every_public_name_is_in_the_api(site: Path) -> None:
    html = (site / "api.html").read_text(encoding="utf-8")
    names = [*public.expected()["functions"], *public.expected()["contracts"], *public.expected()["testing"]]
    assert [name for name in names if f'id="{name}"' not in html] == []
    assert "QTensors of them where it holds QTensors" in html


def test_nothing_is_fetched_by_a_reader_s_browser(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("name", "of"), pages.NOTEBOOKS.items())
def test_a_notebook_is_its_page(name: str, of: str) -> None:
    """Its cells are the page's blocks, with what other tests have seen them print."""
    page = (pages.DOCS / of).read_text(encoding="utf-8")
    assert (pages.DOCS / f"{name}.ipynb").read_text(encoding="utf-8") == pages.notebook(page)
    cells = json.loads(pages.notebook(page))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [text.strip("\n") for kind, text in pages.BLOCK.findall(page) if kind == "python"]
    pictures = re.findall(r"^!\[.+\]\((\S+)\)$", page, re.M)
    assert [picture for picture in pictures if not (pages.DOCS / picture).exists()] == []
    outputs = ["".join(cell["outputs"][0]["text"]) for cell in cells if cell.get("outputs")]
    assert outputs == [text for kind, text in pages.BLOCK.findall(page) if kind == "text"]
