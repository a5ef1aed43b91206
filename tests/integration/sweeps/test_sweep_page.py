"""The page of a sweep inside Airflow's own page, in Chromium, from the sweep's first losses to its report."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ui" / "live"))

from browser import CHROMIUM, Page, browser_page
from patience import patient, wait_until
from sweep_site import ENDED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sweep_site import SiteAirflow, SweepSite

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]

ROW = "[...document.querySelectorAll('#points tbody tr')].find((row) => row.innerText.includes('{}'))"


@pytest.fixture
def page(airflow: SiteAirflow, tmp_path: Path) -> Iterator[Page]:
    """Airflow's page, logged in."""
    user, password = airflow.credentials()
    login = {"username": user, "password": password}
    answer = httpx.post(f"{airflow.address}/auth/token", json=login, timeout=patient(30))
    with browser_page(tmp_path / "profile") as page:
        page.set_cookie(airflow.address, "_token", answer.json()["access_token"])
        page.resize(1400)
        page.set_dark(False)
        page.open(airflow.address)
        yield page
        assert page.hosts == {airflow.address.removeprefix("http://")}


@pytest.fixture
def run_id(site: SweepSite, airflow: SiteAirflow) -> Iterator[str]:
    """A run of the sweep, whose jobs are cancelled afterwards."""
    airflow.wait_for_dag("followed.point")
    airflow.wait_for_dag("followed")
    run_id = airflow.trigger("followed")
    yield run_id
    if airflow.run_state("followed", run_id) not in ENDED:
        airflow.mark_run("followed", run_id, "failed")
    wait_until(lambda: not site.queued("followed."), 60, "the jobs of the sweep to end")


PROGRESS = ROW + ".querySelector('[aria-label^=iteration]').getAttribute('aria-label')"


def open_sweep(page: Page, airflow: SiteAirflow, sweep: str) -> None:
    page.open(f"{airflow.address}/plugin/megatron-sweeps/megatron/sweeps/{sweep}")
    wait(page, "document.querySelector('iframe')?.contentDocument?.querySelector('#points')", timeout=60)
    page.in_frame(True)


def iteration(page: Page, point: str) -> int:
    return int(str(page.ask(PROGRESS.format(point))).split()[1])


def wait(page: Page, expression: str, timeout: float = 20) -> None:
    page.wait(expression, patient(timeout))


def test_a_sweep_is_followed_from_its_first_losses_to_its_report(
    page: Page, run_id: str, site: SweepSite, airflow: SiteAirflow, tmp_path: Path
) -> None:
    wait(page, "document.querySelector('a[href*=megatron-sweeps]')", timeout=120)
    page.click("a[href*=megatron-sweeps]")
    wait(page, "document.querySelector('iframe')?.contentDocument?.querySelector('#sweeps')", timeout=60)
    page.in_frame(True)
    entry = "[...document.querySelectorAll('#sweeps a')].find((link) => link.innerText === 'followed')"
    wait(page, entry, timeout=120)
    page.ask(f"{entry}.click()")

    wait(page, "document.querySelectorAll('#points tbody tr').length === 3", timeout=120)
    page.ask("window.neverLoadedAgain = true")
    wait(page, "document.querySelector('#chart canvas')", timeout=180)
    wait(page, PROGRESS.format("endless"), timeout=90)  # the chart may show another point first
    first = iteration(page, "endless")
    wait(page, f"Number({PROGRESS.format('endless')}.split(' ')[1]) > {first}", timeout=90)
    page.screenshot(tmp_path / "running.png")

    wait(page, f"{ROW.format('broken')}.querySelector('[aria-label=\"Retry broken\"]')", timeout=120)
    page.click('[aria-label="Retry broken"]')
    wait(page, "document.querySelector('dialog[open]')")
    page.click("dialog .buttons button:last-child")
    wait(page, "document.querySelector('#notice').innerText")
    site.expect_states(
        "followed.broken", {f"followed.broken.pretrain.a{n}": ["FAILED"] for n in (1, 2)}, timeout=180
    )

    page.click('[aria-label="Cancel endless"]')
    wait(page, "document.querySelector('dialog[open]')")
    page.click("dialog .buttons button:last-child")
    site.expect_states("followed.endless", {"followed.endless.pretrain.a1": ["CANCELLED"]}, timeout=120)

    assert airflow.ended("followed", run_id) == "failed"
    wait(page, f"{PROGRESS.format('slow')} === 'iteration 200 of 200'", timeout=60)
    wait(page, "document.querySelector('#failures').innerText.includes('dataset_files\\t2')", timeout=60)
    wait(
        page,
        "[...document.querySelectorAll('header a')].some((link) => link.innerText === 'Report')",
        timeout=60,
    )
    assert page.ask("window.neverLoadedAgain") is True
    page.screenshot(tmp_path / "ended.png")

    for dark in (False, True):
        page.in_frame(False)
        page.ask(f"localStorage.setItem('theme', '{'dark' if dark else 'light'}')")
        page.open(f"{airflow.address}/plugin/megatron-sweeps/megatron/sweeps/followed")
        wait(page, "document.querySelector('iframe')?.contentDocument?.querySelector('#chart canvas')")
        page.in_frame(True)
        assert page.ask("document.documentElement.dataset.theme") == ("dark" if dark else "light")
        for width in (390, 700, 1600):
            page.resize(width)
            wait(page, "document.querySelector('#chart canvas').clientWidth <= innerWidth")
            assert page.ask("document.documentElement.scrollWidth <= innerWidth")
            page.screenshot(tmp_path / f"ended-{width}-{'dark' if dark else 'light'}.png", whole=False)
    page.in_frame(False)
    assert page.errors == []


@pytest.mark.long
def test_a_sweep_is_followed_from_its_first_losses_to_its_fit(
    page: Page, site: SweepSite, airflow: SiteAirflow, tmp_path: Path
) -> None:
    airflow.wait_for_dag("valley.point")
    airflow.wait_for_dag("valley")
    run_id = airflow.trigger("valley")
    open_sweep(page, airflow, "valley")
    wait(page, "document.querySelectorAll('#points tbody tr').length === 6", timeout=120)
    page.ask("window.neverLoadedAgain = true")
    wait(page, "document.querySelector('#chart canvas')", timeout=180)
    page.screenshot(tmp_path / "first-losses.png")
    assert airflow.ended("valley", run_id) == "success"
    report = "[...document.querySelectorAll('header a')].find((link) => link.innerText === 'Report')"
    wait(page, report, timeout=60)
    assert page.ask("window.neverLoadedAgain") is True
    page.screenshot(tmp_path / "ended.png")

    page.in_frame(False)
    page.open(f"{airflow.address}/megatron/sweeps/valley/report")
    wait(page, "document.body.innerText.includes('Loss by learning rate, with the optimum')")
    (family,) = json.loads((site.local / "results" / "valley" / "fits.json").read_text())["families"]
    (optimum,) = family["fits"]["optimum"]
    rate = optimum["estimates"]["lr"]
    assert 0.01 < rate["low"] < rate["value"] < rate["high"] < 0.18
    assert f"{rate['value']:.4g}" in str(page.ask("document.body.innerText"))
    panels = "document.querySelectorAll('.panels')"
    for number in range(int(str(page.ask(f"{panels}.length")))):  # each is drawn when it becomes visible
        page.ask(f"{panels}[{number}].scrollIntoView()")
        wait(page, f"{panels}[{number}].querySelector('canvas') !== null")
    for dark in (False, True):
        page.set_dark(dark)
        for width in (700, 1600):
            page.resize(width)
            wait(page, "document.documentElement.scrollWidth <= innerWidth")  # charts are drawn again later
            page.screenshot(tmp_path / f"fit-{width}-{'dark' if dark else 'light'}.png")
    assert page.errors == []
