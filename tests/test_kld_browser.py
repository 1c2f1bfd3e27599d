"""The report in a real browser: headless Chromium, which ``make test`` installs."""

import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

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

# Asked of a copy of the page: the page itself has no script.
PROBE = """<script>
const pictures = [...document.querySelectorAll('figure svg')];
const shown = pictures.filter(picture => picture.getBoundingClientRect().height > 50);
const colours = getComputedStyle(document.body);
document.title = [document.documentElement.scrollWidth, innerWidth, shown.length,
  colours.color, colours.backgroundColor].join('|');
</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of two candidates, with what is not finite among it, and a name that could hurt."""
    folder = tmp_path_factory.mktemp("report")
    kld = np.random.default_rng(0).lognormal(-6, 2, (30, 20))
    kld[3, 4] = math.nan
    other = 2 * kld
    names = ("quantised-" + 5 * "very-" + "long-name", "<script>console.error(1)</script>")
    write_report(
        [
            Candidate(name, size * 10**9, result(values.tolist(), 15 * ["chat", "code"]))
            for name, size, values in zip(names, (3, 2), (kld, other), strict=True)
        ],
        folder,
    )
    return folder / "report.html"


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """The rendered page's source, and what was said on its console."""
    browser = next(filter(None, map(shutil.which, BROWSERS)))
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={page.parent / 'profile'}", *options, "--dump-dom", page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


def probed(report: Path, *options: str) -> list[str]:
    copy = report.with_name("probed.html")
    text = report.read_text(encoding="utf-8")
    copy.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    source, console = browse(copy, *options)
    assert console == []
    found = re.search("<title>([^<]*)</title>", source)
    assert found is not None
    return found[1].split("|")


def test_console_is_heard(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<!doctype html><script>missing()</script>", encoding="utf-8")
    assert browse(page)[1] != []


def test_page_renders_without_a_word_on_the_console(report: Path) -> None:
    source, console = browse(report)
    assert console == []
    assert "Differences" in source
    assert "<script>" not in source


@pytest.mark.parametrize("width", [500, 1400])
def test_page_fits_its_window_and_shows_every_picture(report: Path, width: int) -> None:
    scroll, inner, pictures, *_ = probed(report, f"--window-size={width},900")
    assert int(scroll) <= int(inner)
    assert pictures == "4"


def test_page_is_light_or_dark(report: Path) -> None:
    *_, ink, paper = probed(report)
    *_, dark_ink, dark_paper = probed(report, "--blink-settings=preferredColorScheme=0")
    assert (ink, paper) == ("rgb(28, 32, 36)", "rgb(255, 255, 255)")
    assert (dark_ink, dark_paper) == ("rgb(230, 233, 236)", "rgb(21, 24, 27)")
