"""Compare the page of a sweep with the pages of MLflow, trackio and Aim, with the same values, in one run.

Run as ``python benchmarks/page_beside_peers.py [--runs 1000] [--points 10000] [--views 10] [--only mlflow,trackio]``
after ``make peers``. Each page is opened in Debian's Chromium at a server that has shown it before. Measured is the
time from the navigation until the runs and their curves have been painted. Other machines that a page asks for
something are named.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "ui" / "live"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "peers"))

import live_page
from airflow_database import empty_database
from browser import Page, browser_page
from peer_servers import mlflow_server, peer_python, served
from results_store import fill

from airflow_megatron.cli.local.free_ports import free_port
from airflow_megatron.results.store.segments import SegmentStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

LONGEST_S: Final = 300.0
"""A page that is not painted by then counts as not shown."""
FILL_MLFLOW: Final = """
import sqlite3, sys, time
from mlflow import MlflowClient
url, file, runs, points = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
client, began = MlflowClient(url), int(1000 * time.time())
experiment, ids = client.create_experiment("bench"), []
for number in range(runs):
    run = client.create_run(experiment, run_name=f"lr{number}").info.run_id
    client.log_param(run, "lr", (1 + number) * 1e-6)
    client.log_metric(run, "loss", 2 + 900 / points, began + 1000 * points, points)
    ids.append(run)
# one request for each 1,000 values would take the better part of an hour
database = sqlite3.connect(file, timeout=600)
for run in ids:
    rows = ((2 + 900 / step, began + 1000 * step, run, step) for step in range(1, points))
    database.executemany(
        "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) VALUES ('loss', ?, ?, ?, ?, 0)", rows
    )
database.commit()
assert len(client.get_metric_history(ids[-1], "loss")) == points
print(experiment)
"""
FILL_TRACKIO: Final = """
import sys, time
from datetime import datetime, timezone
from trackio.sqlite_storage import SQLiteStorage
runs, points, began = int(sys.argv[1]), int(sys.argv[2]), time.time()
steps = list(range(1, points + 1))
values = [{"loss": 2 + 900 / step} for step in steps]
times = [datetime.fromtimestamp(began + step, timezone.utc).isoformat() for step in steps]
for number in range(runs):
    SQLiteStorage.bulk_log("bench", f"lr{number}", values, steps, times, config={"lr": (1 + number) * 1e-6})
"""
FILL_AIM: Final = """
import os, sys, aimrocks
from aim import Run
folder, runs, points = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def tracked(number, steps):
    run = Run(repo=folder, experiment="bench", system_tracking_interval=None, capture_terminal_logs=False)
    run.name, run["lr"] = f"lr{number}", (1 + number) * 1e-6
    for step in steps:
        run.track(2 + 900 / step, name="loss", step=step)
    run.close()
    return run.hash

def values(run):
    return aimrocks.DB(f"{folder}/.aim/seqs/chunks/{run}", aimrocks.Options(create_if_missing=False))

# one call for each value would take hours, so the values of the first run are copied to the others
first = tracked(0, range(1, points + 1))
found = values(first).iteritems()
found.seek_to_first()
rows = list(found)
assert len(rows) >= 4 * points
for number in range(1, runs):
    run, batch = tracked(number, (1, points)), aimrocks.WriteBatch()
    for key, value in rows:
        batch.put(key.replace(first.encode(), run.encode(), 1), value)
    values(run).write(batch)
os._exit(0)  # the end of the interpreter destroys the databases in the wrong order
"""
SERVE_TRACKIO: Final = """
import sys, uvicorn
from trackio.server import build_starlette_app_only
app = build_starlette_app_only()
uvicorn.run(app[0] if isinstance(app, tuple) else app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


@contextmanager
def our_page(folder: Path, runs: int, points: int) -> Iterator[tuple[Page, str, str]]:
    """Serve the page of a sweep; yield the browser, the page's address, and when it is painted."""
    os.environ["AIRFLOW__MEGATRON__RESULTS_STORE"] = str(folder / "store")
    os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] = str(folder / "passwords.json")
    with empty_database(folder / "airflow.db"):
        live_page.plan(folder, runs)
        fill(SegmentStore(str(folder / "store")), runs, points)
        with live_page.browsing(folder) as (page, address):
            rows = f"document.querySelectorAll('#points tbody tr').length >= {runs}"
            yield page, address, f"{rows} && document.querySelector('#chart canvas')"


@contextmanager
def mlflow_page(folder: Path, runs: int, points: int) -> Iterator[tuple[Page, str, str]]:
    """Serve MLflow's page of an experiment with its table and charts; the rest as :func:`our_page`."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    with mlflow_server(folder) as url, browser_page(folder / "profile") as page:
        words = [
            str(peer_python("mlflow")),
            "-c",
            FILL_MLFLOW,
            url,
            str(folder / "mlflow.db"),
            str(runs),
            str(points),
        ]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        address = f"{url}/#/experiments/{done.stdout.split()[-1]}/runs?compareRunsMode=CHART"
        yield page, address, "document.querySelector('.js-plotly-plot .scatterlayer .trace path')"


@contextmanager
def trackio_page(folder: Path, runs: int, points: int) -> Iterator[tuple[Page, str, str]]:
    """Serve trackio's page of a project; the rest as :func:`our_page`."""
    environment = {
        "TRACKIO_DIR": str(folder / "data"),
        "HF_HUB_OFFLINE": "1",
        "GRADIO_ANALYTICS_ENABLED": "0",
    }
    words = [str(peer_python("trackio")), "-c", FILL_TRACKIO, str(runs), str(points)]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, **environment})
    port = free_port()
    command = [str(peer_python("trackio")), "-c", SERVE_TRACKIO, str(port)]
    url = f"http://127.0.0.1:{port}"
    with served(command, url, folder, **environment), browser_page(folder / "profile") as page:
        yield page, f"{url}/?project=bench", "document.querySelector('canvas, svg .mark-line path')"


@contextmanager
def aim_page(folder: Path, runs: int, points: int) -> Iterator[tuple[Page, str, str]]:
    """Serve Aim's explorer of metrics, with the query for the values; the rest as :func:`our_page`."""
    aim = str(peer_python("aim").with_name("aim"))
    subprocess.run([aim, "init", "--skip-if-exists"], check=True, capture_output=True, cwd=folder)
    words = [str(peer_python("aim")), "-c", FILL_AIM, str(folder), str(runs), str(points)]
    subprocess.run(words, check=True, capture_output=True)
    query = {"options": [], "query": "", "advancedMode": True, "advancedQuery": "metric.name == 'loss'"}
    chosen = base64.urlsafe_b64encode(json.dumps(query).encode()).decode().rstrip("=")
    port = free_port()
    command = [aim, "up", "--host", "127.0.0.1", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with served(command, url, folder, AIM_UI_TELEMETRY_ENABLED="0"), browser_page(folder / "profile") as page:
        yield page, f"{url}/metrics?select=O-{chosen}", "document.querySelector('svg path.Line')"


PAGES: Final[dict[str, Callable[[Path, int, int], AbstractContextManager[tuple[Page, str, str]]]]] = {
    "airflow-megatron": our_page,
    "mlflow": mlflow_page,
    "trackio": trackio_page,
    "aim": aim_page,
}


def seen(page: Page, address: str, painted: str) -> float:
    """Go to a page anew; return the seconds until it is painted.

    :raises AssertionError: when that takes longer than :data:`LONGEST_S`, or the page's process ends
    :raises TimeoutError: when the page does not answer
    """
    page.open("about:blank")
    began = time.perf_counter()
    page.open(address)
    page.wait(painted, timeout=LONGEST_S)
    page.ask("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    return time.perf_counter() - began


def measured(
    name: str, folder: Path, runs: int, points: int, views: int, pictures: Path | None
) -> tuple[list[float], set[str]]:
    """Return the seconds of each view after the first one, and the other machines that the page asks."""
    with PAGES[name](folder, runs, points) as (page, address, painted):
        page.resize(1400)
        seen(page, address, painted)
        times = [seen(page, address, painted) for _ in range(views)]
        if pictures:
            page.screenshot(pictures / f"{name}.png", whole=False)
        others = {host for host in page.hosts if not host.startswith("127.0.0.1:")}
    return times, others


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--views", type=int, default=10)
    parser.add_argument("--only", default=",".join(PAGES))
    parser.add_argument("--pictures", type=Path, help="folder for a picture of each page")
    chosen = parser.parse_args()
    medians: dict[str, float] = {}
    print(f"{chosen.runs:,} runs of {chosen.points:,} values, {chosen.views} views\n")
    print("| page | median s | minimum | maximum | ratio | asks |\n| --- | --- | --- | --- | --- | --- |")
    for name in chosen.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            try:
                times, others = measured(
                    name, Path(folder), chosen.runs, chosen.points, chosen.views, chosen.pictures
                )
            except (AssertionError, TimeoutError) as error:
                print(f"| {name} | not painted: {str(error)[:200]} | | | | |", flush=True)
                continue
        medians[name] = statistics.median(times)
        ratio = medians[name] / next(iter(medians.values()))
        print(
            f"| {name} | {medians[name]:.2f} | {min(times):.2f} | {max(times):.2f} | {ratio:.1f} "
            f"| {', '.join(sorted(others)) or 'no other machine'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
