"""The live pages in Chromium, served by Airflow's own API server from its database, with the real store of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from browser import CHROMIUM, Page, browser_page
from live_sweep import RUN, add_run
from page_users import token
from served_pages import served
from sqlalchemy import select
from stored_training import put, source, train

from airflow_megatron.dag_factory.point_dag import build_point_dag
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.results.store.tables import ATTEMPTS, EVALUATIONS, POINTS, VALIDATIONS
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep
from airflow_megatron.ui.live import routes, stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy.orm import Session

    from airflow_megatron.ui.live.planned_points import PlannedSweep

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("planned"),
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SegmentStore:
    monkeypatch.setattr(stored, "default_root", lambda: str(tmp_path / "store"))
    monkeypatch.setattr(stored, "_PATIENCE", 0)
    store = SegmentStore(str(tmp_path / "store"))
    for point in ("lr0.001", "lr0.004"):
        for stage, parent in (("pretrain", None), ("cooldown_300k", "pretrain")):
            put(store, POINTS, source(stage, point=point), swept="{}", gpus=2, parent=parent)
        train(store, source("pretrain", point=point), range(1, 61))
    failed = source("pretrain", point="lr0.004")
    put(
        store,
        ATTEMPTS,
        failed,
        outcome="failed",
        reason="CUDA out of memory <b>",
        line="</td><script>",
        gpu_hours=2.0,
    )
    put(
        store,
        VALIDATIONS,
        source("pretrain", point="lr0.001"),
        iteration=40,
        split="validation",
        loss=4.7,
        final=False,
    )
    of = source("pretrain", point="lr0.001")
    for iteration in (20, 40):
        put(store, EVALUATIONS, of, iteration=iteration, task="arc", metric="acc", value=0.4, chance=0.25)
    return store


@pytest.fixture
def page(session: Session, store: SegmentStore, tmp_path: Path) -> Iterator[tuple[Page, str]]:
    """The page of the sweep, and the server's address."""
    add_run(
        session, "chain.point", "lr0.004", "failed", {"pretrain.watch": "failed"}, run=RUN, point="lr0.004"
    )
    with served(tmp_path / "results") as address, browser_page(tmp_path / "profile") as page:
        page.set_cookie(address, "_token", token("ADMIN"))
        page.resize(1400)
        page.set_dark(False)
        page.open(f"{address}/megatron/sweeps/chain")
        page.wait("document.querySelectorAll('#points tbody tr').length === 2")
        yield page, address
        assert page.errors == []
        assert page.hosts == {address.removeprefix("http://")}


def test_the_page_of_a_sweep_that_runs(page: tuple[Page, str], store: SegmentStore, tmp_path: Path) -> None:
    shown, address = page
    shown.wait("document.querySelector('#chart canvas')")
    assert "60/300" in shown.text("#points tbody") or "60/100" in shown.text("#points tbody")
    assert "<b>" not in shown.text("#failures")
    train(store, source("pretrain", point="lr0.001"), range(61, 81))
    shown.wait("document.querySelector('#points tbody').innerText.includes('80/100')")  # without a reload
    shown.wait("document.querySelector('#chart').getAttribute('aria-label').includes('at iteration 80')")

    shown.fill("#metric", "validation_loss")
    shown.wait("document.querySelector('#chart').getAttribute('aria-label').includes('4.7 at iteration 40')")
    assert "4.7" in shown.text("#points tbody tr")
    shown.fill("#metric", "loss")

    shown.fill("#filter", "state == failed and lr > 1e-3")
    assert shown.text("#count") == "1 of 2 points"
    shown.fill("#filter", "lr < (")
    assert "too early" in shown.text("#filter-error")
    shown.fill("#filter", "")
    shown.click("[data-column=lr]")
    shown.click("[data-column=lr]")
    assert shown.text("#points tbody .name").strip() == "lr0.004"
    assert shown.ask("document.querySelector('th:has([data-column=lr])').ariaSort") == "descending"

    shown.wait("document.querySelector('#evaluations [role=img]')?.ariaLabel.includes('chance: 0.25 at 40')")
    shown.fill("#along", "rate")
    shown.wait("document.querySelector('#chart').getAttribute('aria-label').includes('over learning rate')")
    shown.fill("#along", "x")

    shown.click("#points tbody .link")
    shown.wait("document.querySelector('dialog table tbody tr')")
    assert "CUDA out of memory <b>" in shown.text("dialog")
    assert "</td><script>" in shown.text("dialog")
    shown.press("Escape")
    shown.wait("!document.querySelector('dialog')")

    for width in (700, 1400):
        for dark in (True, False):
            shown.resize(width)
            shown.set_dark(dark)
            shown.wait(f"document.documentElement.dataset.theme === '{'dark' if dark else 'light'}'")
            assert shown.ask("document.documentElement.scrollWidth <= innerWidth")
    shown.screenshot(tmp_path / "sweep.png")

    shown.open(f"{address}/megatron/")
    shown.wait("document.querySelector('tbody .group')?.innerText.includes('Running')")


def test_the_pages_are_accessible(page: tuple[Page, str]) -> None:
    """axe-core checks names, roles, contrast and structure."""
    shown, address = page
    shown.wait("document.querySelector('#chart canvas')")
    shown.wait("document.querySelector('#evaluations canvas')")
    for dark in (False, True):
        shown.set_dark(dark)
        assert shown.violations() == []
        shown.click("#points tbody .link")
        shown.wait("document.querySelector('dialog table tbody tr')")
        assert shown.violations() == []
        shown.press("Escape")
        shown.click('[aria-label="Cancel lr0.001"]')
        shown.wait("document.querySelector('dialog[open]')")
        assert shown.violations() == []
        shown.press("Escape")
    shown.open(f"{address}/megatron/")
    shown.wait("document.querySelector('tbody .group')")
    for dark in (False, True):
        shown.set_dark(dark)
        assert shown.violations() == []
    shown.ask("void document.body.append(document.createElement('img'))")
    assert [one.partition(":")[0] for one in shown.violations()] == ["image-alt", "region"]


def test_the_keyboard_reaches_what_the_page_offers(page: tuple[Page, str]) -> None:
    shown, _ = page
    reached = []
    for _ in range(40):
        shown.press("Tab")
        reached.append(
            shown.ask(
                "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.innerText"
            )
        )
    for name in (
        "filter",
        "constants",
        "cancel",
        "lr",
        "lr0.001",
        "Cancel lr0.001",
        "Retry lr0.004",
        "metric",
        "smooth",
    ):
        assert name in reached


def test_a_point_is_cancelled_by_airflow_itself(page: tuple[Page, str], session: Session, pins: Path) -> None:
    shown, _ = page
    outline = SweepOutline.of(load_sweep(pins.parent / "chain.yaml"))
    dag = build_point_dag(outline, {})
    SerializedDagModel.write_dag(
        LazyDeserializedDAG.from_dag(dag), bundle_name="dags-folder", session=session
    )
    session.commit()
    shown.click('[aria-label="Cancel lr0.001"]')
    shown.wait("document.querySelector('dialog[open]')")
    assert "Slurm jobs are cancelled" in shown.text("dialog")
    shown.press("Enter")  # the safe button has the focus
    shown.wait("!document.querySelector('dialog')")
    run = select(DagRun.state).where(DagRun.dag_id == "chain.point", DagRun.run_id == "lr0.001")
    assert session.scalar(run) == "running"
    shown.click('[aria-label="Cancel lr0.001"]')
    shown.click("dialog button.danger")
    shown.wait(
        "document.querySelector('#notice').innerText || document.querySelector('dialog .error')?.innerText"
    )
    assert "sent to Airflow" in shown.text("#notice"), shown.text("dialog")
    session.rollback()
    assert session.scalar(run) == "failed"
    shown.wait("document.querySelectorAll('[aria-label^=Retry]').length === 2")


@pytest.fixture
def long_names(monkeypatch: pytest.MonkeyPatch, store: SegmentStore) -> None:
    """Give the points long values, long directories, and an evaluation with a long name."""
    planned = routes.planned_sweep

    def changed(sweep: str, run: str) -> PlannedSweep | None:
        found = planned(sweep, run)
        assert found is not None
        points = tuple(
            point._replace(
                name=f"{'long-name-' * 8}{point.name}",
                swept={**point.swept, "global_batch_size": 8, "data": f"{'/folder' * 200}/{point.name}"},
                stages=tuple(stage._replace(run_dir="/run-dir" * 40) for stage in point.stages),
            )
            for point in found.points
        )
        return found._replace(points=points)

    monkeypatch.setattr(routes, "planned_sweep", changed)
    of = source("pretrain", point="lr0.001")
    put(store, EVALUATIONS, of, iteration=20, task="a" * 200, metric="m" * 200, filter="f" * 200, value=0.4)


@pytest.mark.usefixtures("long_names")
def test_long_names_fit_on_the_page(page: tuple[Page, str]) -> None:
    shown, address = page
    shown.wait("document.querySelector('#measure option[value^=aaa]')")
    shown.open(f"{address}/megatron/sweeps/chain#%")
    shown.wait("document.querySelector('#measure option[value^=aaa]')")
    shown.wait("document.querySelector('#map table')")
    width = "document.querySelector('#points tbody .link').getBoundingClientRect().width"
    for size in (420, 1400):
        shown.resize(size)
        assert shown.ask("document.documentElement.scrollWidth <= innerWidth")
        # the beginning of the name is visible
        cell = "document.querySelector('#points tbody .name').getBoundingClientRect().width"
        assert 100 < shown.ask(width) < shown.ask(cell)
        assert shown.ask("document.querySelector('#points').offsetWidth") < 2500
    shown.click("#points tbody .link")
    shown.wait("document.querySelector('dialog table tbody tr')")
    assert shown.ask(
        "(({scrollWidth, clientWidth}) => scrollWidth <= clientWidth)(document.querySelector('dialog'))"
    )
    assert shown.text("#trouble") == ""
