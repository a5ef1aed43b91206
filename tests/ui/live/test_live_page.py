"""The live pages in Chromium, served by Airflow's own API server from its database, with the real store of results."""

from __future__ import annotations

import time
from itertools import pairwise
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
from airflow_megatron.ui.live.planned_points import planned_sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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


def test_a_filter_of_one_word_searches_the_names(page: tuple[Page, str], long_names: None) -> None:
    shown, address = page
    shown.open(f"{address}/megatron/sweeps/chain?")
    shown.wait("document.querySelector('#points tbody').innerText.includes('long-name')")
    found = {}
    for text in ("name-lr0.004", "long-name", "name-", "-lr0", "name-lr9", "lr0.004", "lr - 1e-3 > 0"):
        shown.fill("#filter", text)
        found[text] = shown.text("#count"), shown.text("#filter-error")
    assert found == {
        "name-lr0.004": ("1 of 2 points", ""),
        "long-name": ("2 points", ""),
        "name-": ("2 points", ""),
        "-lr0": ("2 points", ""),
        "name-lr9": ("0 of 2 points", ""),
        "lr0.004": ("1 of 2 points", ""),
        "lr - 1e-3 > 0": ("1 of 2 points", ""),
    }


def test_a_page_that_is_hidden_and_shown_often_asks_as_rarely_as_before(page: tuple[Page, str]) -> None:
    shown, _ = page
    shown.ask(
        "window.asked = 0; const ask = window.fetch;"
        "window.fetch = (path, ...more) => { window.asked += /sweeps.chain(\\?|$)/.test(path);"
        " return ask(path, ...more); };"
        "for (let at = 0; at < 6; at++) document.dispatchEvent(new Event('visibilitychange')); true"
    )
    time.sleep(3)
    before = shown.ask("window.asked")
    assert before == 6
    shown.wait(f"window.asked > {before}")  # 10 s after the answers, which come late on a busy machine
    time.sleep(3)
    assert 0 < shown.ask("window.asked") - before <= 2


def test_the_run_that_a_dialog_names_is_cancelled(page: tuple[Page, str], session: Session) -> None:
    """A new run may start while the dialog is open."""
    shown, _ = page
    shown.ask(
        "window.patched = []; const ask = window.fetch;"
        "window.fetch = (path, options, ...more) => { if (options.method === 'PATCH') window.patched.push(path);"
        " return ask(path, options, ...more); }; true"
    )
    shown.click("#cancel")
    shown.wait("document.querySelector('dialog[open]')")
    assert RUN in shown.text("dialog h2")
    add_run(session, "chain", "manual__2", "running", {})
    shown.wait("document.querySelector('#run').value === 'manual__2'")
    shown.click("dialog button.danger")
    shown.wait("window.patched.length")
    assert shown.ask("window.patched[0]").endswith(f"dags/chain/dagRuns/{RUN}")
    shown.errors.clear()  # this Airflow has no stored DAG, so the request fails


def test_a_failed_training_is_not_the_best_of_the_map(
    page: tuple[Page, str], store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, address = page
    monkeypatch.setattr(routes, "planned_sweep", with_batch_sizes(planned_sweep))
    train(store, source("pretrain", attempt=2, job_id="2", point="lr0.004"), range(1, 71), loss=2.0)
    shown.open(f"{address}/megatron/sweeps/chain?")
    shown.wait("document.querySelector('#map td.failed')?.innerText.includes('1.3 failed')")
    assert shown.text("#map td.best").startswith("4.7")
    train(store, source("pretrain", attempt=3, job_id="3", point="lr0.004"), range(1, 101), loss=2.0)
    shown.wait(
        "parseFloat(document.querySelector('#map td.best').innerText) === 1"
    )  # finished; a later stage failed


def test_the_time_of_a_running_sweep_goes_on(page: tuple[Page, str]) -> None:
    shown, address = page
    shown.open(f"{address}/megatron/")
    shown.wait("document.querySelector('tbody .group')?.innerText.includes('Running')")
    shown.ask("(() => { const now = Date.now() + 7200e3; Date.now = () => now; })()")
    shown.wait("/ h /.test(document.querySelector('#sweeps tbody').innerText)", timeout=15)


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


def with_batch_sizes(
    planned: Callable[[str, str], PlannedSweep | None],
) -> Callable[[str, str], PlannedSweep | None]:
    """Return a function that adds a batch size to each point of a plan."""

    def changed(sweep: str, run: str) -> PlannedSweep | None:
        found = planned(sweep, run)
        assert found is not None
        points = (one._replace(swept={**one.swept, "global_batch_size": 8}) for one in found.points)
        return found._replace(points=tuple(points))

    return changed


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


TICKS = """(() => {
  const drawn = window.drawn = [];
  const draw = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const width = this.measureText(text).width / devicePixelRatio;
    if (text && this.textBaseline === 'top' && this.textAlign === 'center' && !/[a-z]{2}/.test(text))
      drawn.push([text, x / devicePixelRatio - width / 2, width, this.canvas.isConnected]);
    return draw.call(this, text, x, y);
  };
})()"""
"""Records the labels of the x axis, each with its left edge and width."""


def ticks_of(page: Page, change: str) -> list[str]:
    """Return the labels of the x axis that a change of the page draws, after a check that none covers another."""
    page.ask("window.drawn.length = 0")
    page.ask(change)
    page.wait("window.drawn.length && new Promise((done) => setTimeout(() => done(true), 300))")
    labels = page.ask("window.drawn")
    # the chart is drawn several times until its axes have their sizes
    last = labels[max(at for at, (_, left, *_) in enumerate(labels) if not at or left < labels[at - 1][1]) :]
    ends = [(left, left + width) for _, left, width, _ in last]
    assert all(one[1] < other[0] for one, other in pairwise(ends)), last
    names = [label for label, *_ in last]
    assert len(set(names)) == len(names)
    return names


def choose(selector: str, value: str) -> str:
    return (
        f"(() => {{ const e = document.querySelector('{selector}'); e.value = '{value}';"
        " e.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )


def drag(page: Page, first: float, last: float) -> None:
    """Select a part of the chart from left to right, as shares of its width."""
    left, top, width, height = page.ask(
        "(({left, top, width, height}) => [left, top, width, height])"
        "(document.querySelector('#chart .u-over').getBoundingClientRect())"
    )
    places = [left + width * share for share in (first, first, (first + last) / 2, last, last)]
    kinds = ("mouseMoved", "mousePressed", "mouseMoved", "mouseMoved", "mouseReleased")
    for kind, x in zip(kinds, places, strict=True):
        held = (
            {}
            if kind == "mouseMoved" and x == places[0]
            else {"button": "left", "clickCount": 1, "buttons": 1}
        )
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=top + height / 2, **held)


def test_labels_of_axes_are_distinct_and_do_not_overlap(page: tuple[Page, str], store: SegmentStore) -> None:
    shown, _ = page
    of = source("pretrain", attempt=2, job_id="2", point="lr0.001")
    train(store, of._replace(seq_length=2 * 10**9), range(1, 81))
    shown.wait("document.querySelector('#chart').getAttribute('aria-label').includes('at iteration 80')")
    shown.ask("document.querySelector('#curves-part').scrollIntoView()")
    shown.ask(TICKS)
    assert "2e12" in ticks_of(shown, choose("#along", "tokens"))
    assert "80" in ticks_of(shown, choose("#along", "x"))
    shown.ask("document.querySelector('#log-x').click()")
    shown.ask("document.querySelector('#log-y').click()")
    assert "1e12" in ticks_of(shown, choose("#along", "tokens"))
    for size in (420, 1400):
        shown.resize(size)
        ticks_of(shown, choose("#along", "flops"))
        ticks_of(shown, choose("#along", "tokens"))


def test_a_part_of_the_curves_stays_selected_while_values_arrive(
    page: tuple[Page, str], store: SegmentStore
) -> None:
    shown, _ = page
    shown.wait("document.querySelector('#chart canvas')")
    shown.ask("document.querySelector('#curves-part').scrollIntoView()")
    shown.ask(TICKS)
    drag(shown, 0.5, 0.6)
    shown.wait("window.drawn.length")
    zoomed = ticks_of(shown, "document.querySelector('#smooth').dispatchEvent(new Event('input'))")
    assert all(29 < float(label) < 38 for label in zoomed)
    train(store, source("pretrain", point="lr0.001"), range(61, 81))
    shown.wait("document.querySelector('#chart').getAttribute('aria-label').includes('at iteration 80')")
    again = ticks_of(shown, "document.querySelector('#smooth').dispatchEvent(new Event('input'))")
    assert again == zoomed
    assert len(ticks_of(shown, choose("#along", "tokens"))) > 2


def test_a_logarithmic_axis_from_zero_has_no_ticks(page: tuple[Page, str]) -> None:
    """A part of a linear axis may begin at 0; counting powers of ten from there would not end."""
    shown, _ = page
    shown.ask(
        "import(new URL('axes.js', document.querySelector('script[type=module]').src))"
        ".then((axes) => { window.ticks = [axes.logTicks(0, 10), axes.logTicks(1, 10)]; }), true"
    )
    shown.wait("window.ticks", timeout=10)
    assert shown.ask("window.ticks") == [[], [1, 2, 5, 10]]


def test_a_parameter_may_have_the_name_of_an_inherited_property(page: tuple[Page, str]) -> None:
    """A point without the parameter has no value, although each object of JavaScript inherits ``constructor``."""
    shown, _ = page
    shown.ask(
        "import(new URL('table.js', document.querySelector('script[type=module]').src))"
        ".then(({ value }) => { window.values = [{constructor: 5}, {}]"
        ".map((params) => value({params}, 'constructor') ?? null); }), true"
    )
    shown.wait("window.values", timeout=10)
    assert shown.ask("window.values") == [5, None]


def test_the_nearest_curve_is_named(page: tuple[Page, str], store: SegmentStore) -> None:
    """Curves over tokens share no positions if their sequence lengths differ."""
    shown, _ = page
    of = source("pretrain", attempt=2, job_id="2", point="lr0.001")
    train(store, of._replace(seq_length=101), range(1, 71), loss=9.0)
    shown.wait("document.querySelector('#chart').getAttribute('aria-label').includes('at iteration 70')")
    shown.fill("#along", "tokens")
    shown.ask("document.querySelector('#curves-part').scrollIntoView()")
    left, top, width, height = shown.ask(
        "(({left, top, width, height}) => [left, top, width, height])"
        "(document.querySelector('#chart .u-over').getBoundingClientRect())"
    )
    named = set()
    for x in (0.3, 0.31, 0.33, 0.5):
        for y in range(0, int(height), 8):
            shown.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * x, y=top + y)
            time.sleep(0.005)
            named.add((x, shown.text("#hover").partition(" ")[0]))
    assert {name for _, name in named} >= {"lr0.001", "lr0.004"}
    assert len([one for one in named if one[1].startswith("lr")]) == 8


def test_curves_say_why_there_is_nothing_to_see(page: tuple[Page, str], store: SegmentStore) -> None:
    shown, _ = page
    train(store, source("pretrain", attempt=2, job_id="2", point="lr0.001"), range(1, 71), loss=-9.0)
    train(store, source("pretrain", attempt=2, job_id="2", point="lr0.004"), range(1, 71), loss=-9.0)
    shown.wait("document.querySelector('#chart').getAttribute('aria-label').includes('at iteration 70')")
    shown.click("#log-y")
    shown.wait("!document.querySelector('#chart canvas')")
    assert shown.text("#chart") == "There are no values that can be drawn on these axes."
    shown.click("#log-y")
    shown.wait("document.querySelector('#chart canvas')")


def test_a_narrower_window_cuts_no_chart(page: tuple[Page, str]) -> None:
    shown, _ = page
    shown.wait("document.querySelector('#evaluations canvas')")
    shown.resize(420)
    fits = (
        "[...document.querySelectorAll('.panel, #chart')].every((one) => one.scrollWidth <= one.clientWidth)"
    )
    shown.wait(fits, timeout=10)


def test_the_page_says_what_it_leaves_out(
    page: tuple[Page, str], store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, _ = page
    assert shown.text("#curves-note") == ""
    assert shown.text("#failures-note") == ""
    monkeypatch.setattr(routes, "MOST_CURVES", 2)
    monkeypatch.setattr(routes, "FAILURES_SHOWN", 1)
    again = source("pretrain", attempt=2, job_id="2", point="lr0.004")
    put(store, ATTEMPTS, again, outcome="failed", reason="again", gpu_hours=1.0)
    train(store, again, range(61, 71))
    shown.wait("document.querySelector('#curves-note').innerText")
    shown.wait("document.querySelector('#failures-note').innerText")
    assert shown.text("#curves-note") == "At most 2 curves are shown: check fewer points."
    assert shown.text("#failures-note") == "The newest 1 of 2 failed attempts are counted."


def test_the_page_says_that_the_server_does_not_answer(page: tuple[Page, str]) -> None:
    shown, address = page
    # its seconds are shorter, from the start
    shorter = "{ const wait = setTimeout; window.setTimeout = (act, pause) => wait(act, pause / 20); }"
    shown.call("Page.addScriptToEvaluateOnNewDocument", source=shorter)
    shown.open(f"{address}/megatron/sweeps/chain")
    shown.wait("document.querySelectorAll('#points tbody tr').length === 2")
    shown.ask("window.answers = [], window.ask = fetch")
    shown.ask("window.fetch = (...of) => new Promise((go) => answers.push(() => go(ask(...of)))), null")
    shown.wait("document.querySelector('#trouble').innerText.includes('the server has not answered')")
    assert shown.ask("document.querySelectorAll('#points tbody tr').length") == 2
    shown.ask("window.fetch = ask, answers.forEach((answer) => answer()), null")
    shown.wait("document.querySelector('#trouble').innerText === ''")
