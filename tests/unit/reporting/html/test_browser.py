"""Pages in a real browser: Chromium without a window. It says nothing on its console, every control can be reached with
the keyboard, and nothing is wider than the window."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.run import Run
from pipeline.reporting.compare.compared import compared
from pipeline.reporting.html import comparison, page
from tests.cases import written_runs
from tests.cases.written_runs import HOSTILE
from tests.unit.reporting.html.test_benched import benched
from tests.unit.reporting.html.test_page import everything

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with its chromedriver")

CONTROLS = """
return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')]
  .filter((one) => one.checkVisibility()).length"""
FOCUS = """
const at = document.activeElement;
if (at === document.body) return null;
const style = getComputedStyle(at), ring = at.querySelector && at.querySelector('.ring, .s');
const seen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
return [at.tagName, seen || (ring !== null && parseFloat(getComputedStyle(ring).strokeWidth) >= 2)]"""
WIDER = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll('body *')]
  .filter((one) => one.checkVisibility() && !one.closest('.scroll, nav ul, svg')
  && one.getBoundingClientRect().right > wide + 1).map((one) => one.outerHTML.slice(0, 120))"""

DRAWN = """
return [...document.querySelectorAll('figure')]
  .map((one) => [...one.querySelectorAll('.drawn')].filter((drawn) => drawn.checkVisibility()).length)"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    folder = tmp_path_factory.mktemp("profile")
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder}",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    hostile = [
        written_runs.write(
            folder / f"h{n}", command=(f"x={n}{HOSTILE}",), tensors=[written_runs.tensor(f"{HOSTILE}.{n}.w")],
            results={
                HOSTILE: {"figures": {HOSTILE: 1.5 + n}}, "generate": {"prompts": [HOSTILE], "texts": [HOSTILE * 40]},
            },
        )
        for n in range(3)
    ]  # fmt: skip
    given: dict[str, list[Run]] = {
        "one": [everything(folder / "one")], "sweep": written_runs.sweep(folder), "hostile": hostile,
        "bench": [benched(folder / "bench")],
    }  # fmt: skip
    for name, runs in given.items():
        page.write(runs, folder / f"{name}.html", title=HOSTILE if name == "hostile" else "")
    found = compared([*given["sweep"], *hostile])
    text = comparison.html(found, found.pareto("size", "perplexity", "KL"), {"perplexity>1%": [HOSTILE]})
    (folder / "comparison.html").write_text(text)
    return {name: folder / f"{name}.html" for name in (*given, "comparison")}


def opened(chromium: Any, path: Path, width: int = 1200, theme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    chromium.get(path.as_uri())


@pytest.mark.parametrize("name", ["one", "sweep", "bench", "hostile", "comparison"])
@pytest.mark.brief("one", "hostile", "comparison")
def test_nothing_is_wider_than_the_window_and_nothing_is_complained_of(
    chromium: Any, pages: dict[str, Path], name: str
) -> None:
    for width in (360, 800, 1600):
        for theme in ("light", "dark"):
            opened(chromium, pages[name], width, theme)
            chromium.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
            assert chromium.execute_script("return document.documentElement.scrollWidth <= innerWidth"), (width, theme)
            assert chromium.execute_script(WIDER) == [], (width, theme)
            assert chromium.get_log("browser") == []
            assert {*chromium.execute_script(DRAWN)} == {1}
    assert chromium.title.endswith("Weightmill")


@pytest.mark.parametrize("name", ["one", "sweep", "bench", "comparison"])
@pytest.mark.brief("one", "comparison")
def test_tab_reaches_every_control_and_shows_where_it_is(chromium: Any, pages: dict[str, Path], name: str) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(chromium, pages[name])
    chromium.execute_script("for (const d of document.querySelectorAll('.filtering')) d.open = true")
    controls, seen = chromium.execute_script(CONTROLS), []
    for _ in range(controls + 5):
        chromium.switch_to.active_element.send_keys(Keys.TAB)
        at = chromium.execute_script(FOCUS)
        if at is None:
            break
        seen.append(at)
    assert len(seen) == controls
    assert [tag for tag, shown in seen if not shown] == []


def test_the_keyboard_walks_through_points_and_says_what_they_are(chromium: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(chromium, pages["sweep"])
    said = []
    point = next(p for p in chromium.find_elements(By.CSS_SELECTOR, ".point[tabindex='0']") if p.is_displayed())
    chromium.execute_script("arguments[0].focus()", point)
    for _ in range(6):
        said.append(chromium.find_element(By.ID, "tip").text)
        chromium.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert len({*said}) == 6
    assert said[0] == "quant=int8 seed=2: bits a weight 5.250, perplexity 61.667, KL 0.0060 nats"  # the largest
    assert said[5].endswith("bits a weight 4.000, perplexity 60.000, KL 0.0010 nats, no other beats it")
    chromium.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not chromium.find_element(By.ID, "tip").is_displayed()


def test_metrics_are_chosen_with_the_keyboard(chromium: Any, pages: dict[str, Path]) -> None:
    """What is drawn then is what the table says, and what the front of the chosen metrics is."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    opened(chromium, pages["sweep"])
    drawn = ".choosing ~ .drawn.wide"

    def points() -> dict[str, tuple[float, float, float, str, str]]:
        script = f"""return [...document.querySelectorAll('{drawn} .point')].map((p) => {{
          const c = p.querySelector('.bubble');
          return [p.dataset.key, c.cx.baseVal.value, c.cy.baseVal.value, c.r.baseVal.value, c.classList.value,
            p.getAttribute('aria-label')]; }})"""
        return {key: tuple(rest) for key, *rest in chromium.execute_script(script)}

    chromium.execute_script("dispatchEvent(new Event('pageshow'))")
    redrawn = points()
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    opened(chromium, pages["sweep"])
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    still = points()
    assert {key: p[3] for key, p in still.items()} == {key: p[3] for key, p in redrawn.items()}
    for key, (x, y, r, *_) in still.items():
        assert redrawn[key][:3] == pytest.approx((x, y, r), abs=0.5)  # as it was drawn without the script

    opened(chromium, pages["sweep"])
    _, up, third = chromium.find_elements(By.CSS_SELECTOR, ".choosing select")
    chromium.execute_script("arguments[0].focus()", up)
    up.send_keys("KL")
    third.send_keys("none")
    assert third.get_attribute("value") == ""
    found = points()
    first, *others = sorted(found.values(), key=lambda p: p[0])
    assert "no other beats it" in first[4]
    assert [p for p in others if "no other beats it" in p[4]] == []
    heights = [p[1] for p in [first, *others]]
    assert heights == sorted(heights, reverse=True)  # KL grows with size, and the least is at the bottom
    assert "KL 0.0010 nats" in first[4]
    assert len({p[2] for p in found.values()}) == 1  # no third: all of one size
    cells = "return [...document.querySelectorAll('.choosing ~ details tbody tr')].map((r) => r.lastChild.textContent)"
    assert chromium.execute_script(cells) == ["no other beats it"] + ["–"] * 5
    chromium.execute_script("document.querySelector('.choosing ~ .drawn.wide .point[tabindex=\"0\"]').focus()")
    chromium.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert "KL" in chromium.find_element(By.ID, "tip").text
    assert chromium.get_log("browser") == []


def test_filters_fade_what_does_not_fit(chromium: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    opened(chromium, pages["sweep"])
    chromium.execute_script("for (const d of document.querySelectorAll('.filtering')) d.open = true")
    chromium.find_element(By.CSS_SELECTOR, "select[data-axis='quant']").send_keys("int8")
    count = chromium.find_element(By.CSS_SELECTOR, ".count")
    assert count.text == "3 of 6 runs"
    chromium.find_element(By.CSS_SELECTOR, "input[data-axis='perplexity'][data-end='low']").send_keys("61")
    assert count.text == "2 of 6 runs"
    faded = chromium.find_elements(By.CSS_SELECTOR, ".wide .line.faded")
    assert len(faded) == 4
    chromium.find_element(By.CSS_SELECTOR, ".reset").click()
    assert count.text == "6 of 6 runs"
    assert chromium.find_elements(By.CSS_SELECTOR, ".faded") == []


def test_a_click_on_a_head_sorts_by_number(chromium: Any, pages: dict[str, Path]) -> None:
    opened(chromium, pages["sweep"])
    script = """
    const table = [...document.querySelectorAll('table')].find((t) => t.caption.textContent === 'Runs');
    const i = [...table.tHead.rows[0].cells].findIndex((c) => c.textContent === 'perplexity');
    table.tHead.rows[0].cells[i].querySelector('button').click();
    table.tHead.rows[0].cells[i].querySelector('button').click();
    return [table.tHead.rows[0].cells[i].getAttribute('aria-sort'),
      [...table.tBodies[0].rows].map((r) => Number(r.cells[i].dataset.v))]"""
    direction, values = chromium.execute_script(script)
    assert direction == "descending"
    assert values == sorted(values, reverse=True)
    assert len(values) == 6


def test_light_and_dark_by_hand(chromium: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    opened(chromium, pages["one"])
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = chromium.execute_script(ground)
    button = chromium.find_element(By.ID, "theme")
    button.click()
    assert chromium.execute_script(ground) != light
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert chromium.execute_script(ground) == light


def test_numbers_are_the_manifest_s(chromium: Any, pages: dict[str, Path]) -> None:
    opened(chromium, pages["one"])
    manifest = json.loads((pages["one"].parent / "one/manifest.json").read_text())
    script = """
    const named = (t) => t.caption.textContent === 'Quantization error by tensor';
    const rows = [...[...document.querySelectorAll('table')].find(named).tBodies[0].rows];
    return Object.fromEntries(rows.map((r) => [r.cells[0].textContent, Number(r.cells[4].dataset.v)]))"""
    assert chromium.execute_script(script) == {row["name"]: row["rmse"] for row in manifest["tensors"]}


def test_without_javascript_all_of_it_is_there(chromium: Any, pages: dict[str, Path]) -> None:
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(chromium, pages["sweep"])
        shown = chromium.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
        assert len(shown["data"]) > 50_000
        chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
        assert chromium.execute_script("return document.documentElement.className") == ""
        count = "return document.querySelectorAll('figure svg title').length"
        assert chromium.execute_script(count) > 40  # what hints are made of, which browsers show as they are
        hidden = "return [...document.querySelectorAll('.js-only')].every((one) => !one.checkVisibility())"
        assert chromium.execute_script(hidden)
    finally:
        chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_names_do_nothing(chromium: Any, pages: dict[str, Path]) -> None:
    opened(chromium, pages["hostile"], 360)
    assert "owned" in chromium.title  # as text
    assert chromium.title != "owned"
    assert chromium.execute_script("return document.images.length") == 0
    assert chromium.execute_script("return document.scripts.length") == 1
    assert chromium.get_log("browser") == []


def test_long_names_are_shortened_by_the_script_as_without_it(chromium: Any, tmp_path: Path) -> None:
    """Their ends, which tell them apart, stay."""
    runs = [
        written_runs.write(
            tmp_path / f"r{n}", command=(f"train.folder=/somewhere/that/is/far/away/and/deep/seed-{n}",),
            results={"evaluate": written_runs.scored(60.0 + n, 0.1 + n)}, nbytes_out=1000 * (n + 1),
        )
        for n in range(3)
    ]  # fmt: skip
    page.write(runs, tmp_path / "page.html")
    texts = "return [...document.querySelectorAll('.choosing ~ .drawn.wide text.halo')].map((t) => t.textContent)"
    opened(chromium, tmp_path / "page.html")
    chromium.execute_script("dispatchEvent(new Event('pageshow'))")
    drawn = chromium.execute_script(texts)
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    opened(chromium, tmp_path / "page.html")
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert {*chromium.execute_script(texts)} <= {*drawn}
    assert {text[-6:] for text in drawn} == {f"seed-{n}" for n in range(3)}
