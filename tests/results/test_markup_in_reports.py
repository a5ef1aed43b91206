"""Points, stages, messages and logs appear as text in the report: no element, attribute or script."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from run_tree import RunTree, take_snapshot

from airflow_megatron.results.readings.sweep_jobs import read_jobs, run_directories
from airflow_megatron.results.report import report as report_module
from airflow_megatron.results.report.report import write_report
from airflow_megatron.ui.live.result_folders import ResultFolders

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "harmless"
MARKUP = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    '" onmouseover="alert(1)',
    "</td></tr></table><h1>x</h1>",
    "</title><base href=//evil>",
    "<!--",
    "--><b>",
    "]]><x>",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<a href=javascript:alert(1)>x</a>",
    "{{ 7*7 }}{% raw %}",
    "${alert(1)}`",
    "<style>*{display:none}</style>",
    "\u2028<b>\u2029",
    "<meta http-equiv=refresh content=0;url=//evil>",
    "<\x00script>",
    "| a | b |\n|---|---|",
]


class Page(HTMLParser):
    """Collects the elements of a page with the names of their attributes, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        (self.scripts if self._inside == "script" else self.texts).append(data)

    def handle_comment(self, data: str) -> None:
        self.elements.append(("comment", (data,)))


def page_of(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> Page:
    """Return the report of a sweep all of whose words that people or jobs choose are *text*."""
    monkeypatch.setattr(report_module, "_plots", lambda *_: [])
    tree = RunTree(folder / "sweep")
    for rate in (1e-3, 3e-3):
        tree.add_point({"num_layers": 2, "hidden_size": 64}, 1000, rate, train_iters=40)
    run = next(iter(sorted(tree.root.rglob("logs")))).parent
    stage = read_jobs(tree.jobs)[0].stage

    def write(path: str, content: Any) -> None:
        (run / path).parent.mkdir(parents=True, exist_ok=True)
        (run / path).write_text(json.dumps(content), errors="surrogatepass")

    verdict = {"outcome": "failed", "reason": text, "attempt": 1, "line": text, "state": text}
    write(f".jobs/{stage}/verdict.json", {**verdict, "job_id": text, "failed_nodes": [text]})
    write(f".jobs/{stage}/1/exit.json", {"exit_code": 1, "host": text, "nodes": text, "job_id": text})
    write("eval_results/iter_40/results.json", {"results": {text: {f"{text},none": 0.5, "acc,none": 0.5}}})
    for job in tree.jobs:
        job["point"] = f"{text} {job['point']}"
        for name in ("swept", "params"):
            if isinstance(job.get(name), dict):
                job[name]["named"] = text
    jobs = read_jobs(tree.jobs)
    made = write_report(take_snapshot(run_directories(jobs)), tree.jobs, folder / "out")
    return Page(made.page.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("text", MARKUP, ids=lambda text: repr(text[:24]))
def test_it_is_text(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a column with long texts is laid out differently
    plain = page_of(tmp_path / "plain", PLAIN.ljust(len(text), "s"), monkeypatch)
    page = page_of(tmp_path / "hostile", text, monkeypatch)
    assert page.elements == plain.elements
    assert page.scripts == plain.scripts
    assert any(PLAIN in written for written in plain.texts)  # it is on the page at all


def test_a_pipe_in_the_place_of_a_table_holds_nobody(tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "report.html").write_text("x")
    os.mkfifo(tmp_path / "sweep" / "results.json")
    (found,) = ResultFolders(tmp_path).sweeps()
    assert (found.name, found.branches) == ("sweep", 0)
