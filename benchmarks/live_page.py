"""Measure the page of a big sweep in Debian's Chromium: the first view, and the answers that it asks for.

Run as ``python benchmarks/live_page.py [--runs 1000] [--points 10000] [--views 10]``. Airflow's own API server serves
the page, with a login, from a database and a store of results of the benchmark's own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "ui" / "live"))
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"  # read at import; else each request is a line

from airflow import settings
from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow_database import empty_database
from browser import Page, browser_page
from live_sweep import RUN, add_dags, add_run
from results_store import fill
from served_pages import served

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.results.store.segments import SegmentStore
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC: Final = """\
name: bench
point: "lr{{ number }}"
megatron: {seq_length: 4096, global_batch_size: 1024, micro_batch_size: 1, train_iters: 20000, save_interval: 1000,
  num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 4096, lr_decay_style: constant,
  lr: "{{ (1 + number) * 1e-6 }}", mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100}
sweep: {number: [%s]}
stages: {pretrain: {kind: train}}
"""
PAINTED: Final = """
window.painted = new Promise((resolve) => {
  const look = () => {
    const rows = document.querySelectorAll("#points tbody tr").length;
    const curves = document.querySelector("#chart canvas");
    if (!rows || !curves) requestAnimationFrame(look);
    else requestAnimationFrame(() => setTimeout(() => resolve([performance.now(), rows])));
  };
  look();
});
"""
"""Milliseconds from the navigation until the frame with the table and the curves has been painted."""
ANSWERS: Final = """
(async () => {
  const times = [];
  performance.clearResourceTimings();
  for (let number = 0; number < 100; number++) {
    const began = performance.now();
    await (await fetch("%s", {cache: "no-store"})).arrayBuffer();
    times.push(performance.now() - began);
  }
  const last = performance.getEntriesByType("resource").at(-1);
  return [times, last.encodedBodySize, last.decodedBodySize];
})()
"""


def plan(folder: Path, runs: int) -> None:
    """Plan the sweep, and enter it into Airflow's database with a run whose points all run."""
    file, pins = folder / "bench.yaml", PinStore(folder / "pins")
    text = SPEC % ", ".join(map(str, range(runs)))
    file.write_text(text)
    sweep, around = load_sweep(file), PlanEnvironment.now("local")
    pinned = PinnedSweep.stored(sweep, text, plan_sweep(sweep, around.cluster), around, pins)
    pins.set_newest("bench", RUN, pinned.pin)
    os.environ[project.PINS_VARIABLE] = str(pins.root)
    with settings.Session() as session:
        add_dags(session, bench="sweep", **{"bench.point": "point"})
        add_run(session, "bench", RUN, "running", {"launch": "success"})
        tasks = {"pretrain.submit": "success", "pretrain.watch": "deferred"}
        for name in pinned.points:
            add_run(session, "bench.point", name, "running", tasks, run=RUN, point=name)


@contextmanager
def browsing(folder: Path) -> Iterator[tuple[Page, str]]:
    """Open a page with a login, at the sweep's page; yield it with the page's address."""
    with served(folder / "results") as address, browser_page(folder / "profile") as page:
        token = create_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ada", role="ADMIN"))
        page.set_cookie(address, "_token", token)
        page.resize(1400)
        page.call("Page.addScriptToEvaluateOnNewDocument", source=PAINTED)
        yield page, f"{address}/megatron/sweeps/bench"


def view(page: Page, address: str) -> tuple[float, int]:
    """Go to the page anew; return milliseconds until it is painted, and the rows of its table."""
    page.open("about:blank")
    page.open(address)
    page.wait(f"location.href === '{address}' && window.painted", timeout=300)
    milliseconds, rows = page.ask("window.painted")
    return milliseconds, rows


def measure(folder: Path, runs: int, points: int, views: int) -> None:
    """Fill database and store, and print what is measured.

    :param folder: empty
    """
    os.environ["AIRFLOW__MEGATRON__RESULTS_STORE"] = str(folder / "store")
    os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] = str(folder / "passwords.json")
    began = time.perf_counter()
    plan(folder, runs)
    fill(SegmentStore(str(folder / "store")), runs, points)
    print(f"made {runs} runs of {points} points in {time.perf_counter() - began:.0f} s")
    with browsing(folder) as (page, address):
        took, rows = view(page, address)
        print(f"first view of a server that has just started: {took / 1000:.2f} s, {rows} rows")
        times = [view(page, address)[0] / 1000 for _ in range(views)]
        print(f"view, warm: median {statistics.median(times):.2f} s, {min(times):.2f} to {max(times):.2f} s")
        chosen = "&".join(f"points=lr{number}" for number in range(12))
        root = address.removesuffix("sweeps/bench")
        page.open(f"{root}static/none")  # a page that asks for nothing itself
        time.sleep(2)
        for path in ("sweeps/bench", f"sweeps/bench/curves?metric=loss&{chosen}", "sweeps/bench/failures"):
            times, sent, size = page.ask(ANSWERS % f"{root}api/{path}")
            middle, slow = statistics.median(times), sorted(times)[94]
            what = f"{sent:,} bytes sent, {size:,} unpacked"
            print(f"  {path.partition('&')[0]}: median {middle:.0f} ms, p95 {slow:.0f} ms, {what}")
        assert page.hosts == {address.split("/")[2]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--views", type=int, default=10)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, empty_database(Path(name) / "airflow.db"):
        measure(Path(name), chosen.runs, chosen.points, chosen.views)


if __name__ == "__main__":
    main()
