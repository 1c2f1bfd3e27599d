"""Tells at the end of a test run which statements of metal/ no checked run has executed.

``--metal-coverage PERCENT`` makes the run fail below that share.
"""

from __future__ import annotations

from typing import Any

import pytest

from . import lines

_coverage = pytest.StashKey[lines.Coverage]()
_MISSED_SHOWN = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--metal-coverage``."""
    parser.addoption(
        "--metal-coverage",
        type=float,
        metavar="PERCENT",
        help="fail if checked runs execute fewer of the statements in metal/",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing."""
    config.stash[_coverage] = lines.Coverage()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker process measured."""
    sent = getattr(node, "workeroutput", {}).get("metal_coverage")
    if sent:
        node.config.stash[_coverage].add_known(sent["known"])
        node.config.stash[_coverage].add_executed(sent["executed"])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send what this process measured, or judge the sum."""
    config = session.config
    measured = lines.collected().to_json()
    if hasattr(config, "workeroutput"):
        config.workeroutput["metal_coverage"] = measured
        return
    total = config.stash[_coverage]
    total.add_known(measured["known"])
    total.add_executed(measured["executed"])
    wanted = config.getoption("--metal-coverage")
    if wanted is not None and session.exitstatus == 0 and 100 * total.share() < wanted:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """One line a file."""
    total = config.stash[_coverage]
    if not total.known:
        return
    terminalreporter.section("statements of metal/ executed in checked mode")
    for file in sorted(total.known):
        missed = total.missed(file)
        spans = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in missed[:_MISSED_SHOWN])
        more = " ..." if len(missed) > _MISSED_SHOWN else ""
        name, known = file.rpartition("/")[2], len(total.known[file])
        told = f"; missed in lines {spans}{more}" if missed else ""
        terminalreporter.line(f"{name}: {known - len(missed)} of {known}{told}")
    for path in sorted(lines.METAL.glob("*.metal")):
        if str(path) not in total.known:
            terminalreporter.line(f"{path.name}: never compiled")
    wanted = config.getoption("--metal-coverage")
    limit = "" if wanted is None else f", {wanted:g} % wanted"
    terminalreporter.line(f"all: {100 * total.share():.1f} %{limit}")
