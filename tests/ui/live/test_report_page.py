"""The report's page in Chromium, opened as a file: table, curves, figures, both themes; no requests."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest
from browser import CHROMIUM, Page, browser_page
from run_tree import RunTree, take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report import report as report_module
from airflow_megatron.results.report.page_scripts import PageScriptError, chart_library, page_script
from airflow_megatron.results.report.report import write_report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

HOSTILE = "</div></script><img src=x onerror=window.hacked=1>`${window.hacked=1}`"


@pytest.fixture(scope="module")
def report_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of two sizes and five learning rates, with a hostile word in every name."""
    folder = tmp_path_factory.mktemp("report")
    tree = RunTree(folder / "sweep")
    for hidden, parameters in ((64, 120_000), (128, 700_000)):
        for rate in (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2):
            tree.add_point({"num_layers": 2, "hidden_size": hidden}, parameters, rate)
    tree.add_point({"num_layers": 2, "hidden_size": 128}, 700_000, 3e-2, diverges_at=200)
    for job in tree.jobs:
        job["point"] = f"{job['point']} {HOSTILE}"
        # parameters may have the names of columns
        job["sweep_params"] = {**job["sweep_params"], HOSTILE: HOSTILE, "loss": "mse", "state": "TX"}
    snapshot = take_snapshot(run_directories(read_jobs(tree.jobs)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report_module, "draw_plots", lambda _: [])  # they take seconds, and are only images
        made = write_report(snapshot, tree.jobs, folder / "out", title=HOSTILE, about=[HOSTILE])
    return made.page.as_uri()


@pytest.fixture(scope="module")
def page(report_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("chromium")) as page:
        page.resize(1400)
        page.open(report_url)
        page.wait("document.querySelectorAll('#points tbody tr').length == 11")
        yield page


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@needs_browser
def test_names_are_text_and_nothing_leaves_the_page(page: Page) -> None:
    page.wait("document.querySelector('#points').innerText.includes('onerror')")
    assert page.ask("window.hacked === undefined")
    assert page.ask("document.querySelectorAll('img[src=x]').length") == 0
    assert page.errors == []
    assert page.hosts == set()


@needs_browser
def test_the_table_filters_and_sorts(page: Page) -> None:
    page.fill("#filter", "state == failed")
    page.wait("document.querySelectorAll('#points tbody tr').length == 1")
    assert page.text("#count") == "1 of 11 points"
    page.fill("#filter", "")
    page.wait("document.querySelectorAll('#points tbody tr').length == 11")
    page.click("table.results th button")
    assert page.ask("document.querySelector('table.results th').getAttribute('aria-sort')") == "ascending"


@needs_browser
def test_a_parameter_with_the_name_of_a_column_is_a_column_of_its_own(page: Page) -> None:
    page.fill("#filter", "params.loss == mse and params.state == TX and loss < 100")
    page.wait("document.querySelector('#count').innerText === '10 of 11 points'")
    page.fill("#filter", "")
    page.click("#constants")
    page.wait("document.querySelector('#points [data-column=\"params.state\"]')")
    column = "document.querySelector('#points th:has([data-column=\"params.state\"])').cellIndex"
    rows = "[...document.querySelectorAll('#points tbody tr')]"
    assert page.ask(f"{rows}.every((row) => row.cells[{column}].innerText === 'TX')")
    page.click("#constants")


@needs_browser
def test_a_loss_that_is_no_number_is_shown_and_sorted_last(page: Page) -> None:
    for direction in ("ascending", "descending"):
        page.click("#points th button[data-column=loss]")
        column = f"document.querySelector('#points th[aria-sort={direction}]').cellIndex"
        rows = "[...document.querySelectorAll('#points tbody tr')]"
        losses = page.ask(f"{rows}.map((row) => row.cells[{column}].innerText)")
        assert losses[-1] == "NaN"
        assert "NaN" not in losses[:-1]
        numbers = [float(loss) for loss in losses[:-1]]
        assert numbers == sorted(numbers, reverse=direction == "descending")
    page.click("#points th button[data-column=loss]")


@needs_browser
@pytest.mark.skipif(not chart_library(), reason="the chart library has not been fetched")
def test_curves_and_figures_are_drawn_in_both_themes_and_widths(page: Page) -> None:
    page.wait("document.querySelector('#chart canvas')")
    figures = page.ask("document.querySelectorAll('figure:has(.panels)').length")
    names = page.ask("JSON.stringify([...document.querySelectorAll('figure h2')].map(e => e.textContent))")
    assert {"Loss over compute", "Divergence by learning rate"} <= set(json.loads(names))
    for dark in (False, True):
        page.set_dark(dark)
        page.wait(f"document.documentElement.dataset.theme == '{'dark' if dark else 'light'}'")
        for width in (1400, 700):
            page.resize(width)
            for number in range(figures):
                figure = f"document.querySelectorAll('figure:has(.panels)')[{number}]"
                page.ask(f"{figure}.scrollIntoView()")
                page.wait(f"{figure}.querySelector('.panel canvas')")
                assert page.ask(f"{figure}.querySelector('img').hidden")
            assert page.ask("document.documentElement.scrollWidth <= innerWidth"), width
    page.ask("document.querySelector('figure .legend button').click()")
    assert page.ask("document.querySelector('figure .legend button').getAttribute('aria-pressed')") == "false"
    assert page.errors == []


@needs_browser
@pytest.mark.skipif(not chart_library(), reason="the chart library has not been fetched")
def test_all_figures_are_printed_in_the_light_theme(report_url: str, tmp_path: Path) -> None:
    with browser_page(tmp_path / "chromium") as page:
        page.resize(1400)
        page.set_dark(True)
        page.open(report_url)
        page.wait("document.querySelector('figure .panels')")
        page.ask(
            "addEventListener('beforeprint', () => (window.printed = document.documentElement.dataset.theme))"
        )
        assert page.ask("document.querySelector('figure:last-of-type .panels canvas')") is None
        (tmp_path / "report.pdf").write_bytes(base64.b64decode(page.call("Page.printToPDF")["data"]))
        assert page.ask(
            "[...document.querySelectorAll('figure .panel')].every((one) => one.querySelector('canvas'))"
        )
        assert page.ask("window.printed") == "light"
        page.wait("document.documentElement.dataset.theme === 'dark'")
        assert page.errors == []


def test_a_module_that_cannot_be_put_into_one_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_megatron.results.report import page_scripts

    assert "import {" not in page_script()
    (tmp_path / "report.js").write_text('import * as all from "./dom.js";\n')
    monkeypatch.setattr(page_scripts, "_OWN", tmp_path)
    with pytest.raises(PageScriptError, match="cannot be put into the report"):
        page_script()
