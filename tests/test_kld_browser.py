"""The report in a real browser: headless Chromium, which ``make test`` installs."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixbit.cli import main
from mixbit.data import tiny_model
from mixbit.kld.compare import Candidate
from mixbit.kld.report import write_report
from test_kld_compare import result

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)

# Asked of a copy of the page: the page itself has no script. Contrast is WCAG 2's; the cells of a
# plan bring their own ground.
PROBE = """<script>
const light = colour => {
  const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(value => value / 255)
    .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [dark, bright] = [light(one), light(other)].sort((a, b) => a - b);
  return (bright + 0.05) / (dark + 0.05);
};
const probe = () => {
  const page = getComputedStyle(document.body);
  const words = [...document.querySelectorAll('body *')].filter(element =>
    element.getClientRects().length > 0 &&
    [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()));
  const grounds = words.filter(element => !element.closest('.plan svg')).map(element => {
    const own = getComputedStyle(element);
    const ground = element.tagName === 'MARK' ? own.backgroundColor : page.backgroundColor;
    return contrast(element.closest('svg') ? own.fill : own.color, ground);
  });
  const width = document.documentElement.clientWidth;
  return {
    width,
    scroll: document.documentElement.scrollWidth,
    pictures: [...document.querySelectorAll('figure svg')]
      .filter(picture => picture.getBoundingClientRect().height > 50).length,
    beyond: words.filter(element => element.getBoundingClientRect().right > width + 1)
      .map(element => element.textContent.trim()),
    words: grounds.length,
    contrast: Math.min(...grounds),
    ink: page.color,
    paper: page.backgroundColor,
  };
};
const tell = () => console.log('PROBE ' + JSON.stringify(probe()));
if (PRINTED) {
  matchMedia('print').addEventListener('change', event => event.matches && tell());
} else {
  tell();
}
</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two candidates, with what is not finite among it, and a name that could hurt."""
    folder = tmp_path_factory.mktemp("report")
    quantise = ["quantize", "--model", str(tiny_model()), "--mlx-path", str(folder / "q4")]
    assert main([*quantise, "--recipe", "uniform", "--q-bits", "4"]) == 0
    kld = np.random.default_rng(0).lognormal(-6, 2, (30, 20))
    kld[3, 4] = math.nan
    other = 2 * kld
    names = ("quantised-" + 5 * "very-" + "long-name", "<script>console.error(1)</script>")
    kinds = 15 * ["chat", "code"]
    write_report(
        [
            Candidate(names[0], 3 * 10**9, result(kld.tolist(), kinds), folder / "q4"),
            Candidate(names[1], 2 * 10**9, result(other.tolist(), kinds), tiny_model()),
        ],
        folder,
    )
    return folder / "report.html"


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """What the browser writes of a page, by default its rendered source, and its console."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={page.parent / 'profile'}", *(options or ["--dump-dom"]),
            page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def probed(report: Path, *options: str, printed: bool = False) -> dict[str, Any]:
    """What the page measures of itself, on the screen or on the paper that it is printed on."""
    copy = report.with_name("probed.html")
    probe = PROBE.replace("PRINTED", str(printed).lower())
    text = report.read_text(encoding="utf-8")
    copy.write_text(text.replace("</body>", probe + "</body>"), encoding="utf-8")
    paper = report.with_name("paper.pdf")
    _, console = browse(copy, *options, f"--print-to-pdf={paper}" if printed else "--dump-dom")
    assert len(console) == 1
    found = re.search(r'"PROBE (\{.*\})", source', console[0])
    assert found is not None, console
    measured: dict[str, Any] = json.loads(found[1])
    return measured


def test_console_is_heard(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><script>missing()</script>", encoding="utf-8")
    assert browse(page)[1] != []


def test_page_renders_without_a_word_on_the_console(report: Path) -> None:
    source, console = browse(report)
    assert console == []
    assert "Differences" in source
    assert "<script>" not in source


DARK = "--blink-settings=preferredColorScheme=0"


@pytest.mark.parametrize("width", [500, 1400])
def test_page_fits_its_window_and_shows_every_picture(report: Path, width: int) -> None:
    found = probed(report, f"--window-size={width},900")
    assert found["scroll"] <= found["width"]
    assert found["pictures"] == 5


def test_page_is_light_or_dark_and_always_to_be_read(report: Path) -> None:
    light, dark = probed(report), probed(report, DARK)
    assert (light["ink"], light["paper"]) == ("rgb(28, 32, 36)", "rgb(255, 255, 255)")
    assert (dark["ink"], dark["paper"]) == ("rgb(230, 233, 236)", "rgb(21, 24, 27)")
    assert light["words"] > 300
    assert min(light["contrast"], dark["contrast"]) > 4.5


@pytest.mark.parametrize("scheme", [(), (DARK,)], ids=["light", "dark"])
def test_paper_shows_all_of_it_black_on_white(report: Path, scheme: tuple[str, ...]) -> None:
    # What runs past the edge of paper cannot be scrolled to.
    found = probed(report, *scheme, printed=True)
    assert (found["ink"], found["paper"]) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)")
    assert found["beyond"] == []
    assert found["pictures"] == 5
    assert found["contrast"] > 4.5
