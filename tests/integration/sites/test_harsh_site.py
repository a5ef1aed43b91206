"""A site without accounting, without internet on nodes, with few files, slow logins and a queue that hides new jobs."""

from __future__ import annotations

import functools
import json
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from driven_job import DrivenJob
from harsh_site import MOST_FILES, WINDOW_S, HarshSite
from patience import patient, wait_until

from airflow_megatron.cli.setup.cluster_check import FAILED, OK, WARNING, check_cluster
from airflow_megatron.operators import slurm_watch
from airflow_megatron.slurm.remote.profile import SlurmCommands
from airflow_megatron.slurm.submission.single_job import parse_submission, submission_script

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = [
    pytest.mark.integration,
    pytest.mark.trainer,
    pytest.mark.skipif(
        os.getuid() != 0, reason="only root can mount a file system, and take away the network"
    ),
]

SPEC = """\
name: harsh
cluster: harsh
point: only
slurm: {{time: 10m, gpus_per_node: 0}}
restart: {{retryable: 0}}
stages:
  fetch: {{kind: prefetch, scope: sweep, params: {{where: login, urls: ["{address}/words.txt"]}}}}
  read:
    kind: command
    parent: fetch
    command:
    - bash
    - -c
    - 'cat "$HF_HOME/files/words.txt"; (: </dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo internet || echo none'
  fill:
    kind: command
    parent: read
    command: [bash, -c, 'for i in $(seq {files}); do : >"file$i" || exit 1; done']
  again: {{kind: command, parent: read, command: ["true"]}}
"""


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """Serve a folder on the login node and yield the port."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def harsh(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HarshSite]:
    with pytest.MonkeyPatch.context() as patch, HarshSite(tmp_path_factory.mktemp("harsh"), cluster) as site:
        for name, value in site.variables.items():
            patch.setenv(name, value)
        yield site


def test_a_chain(
    harsh: HarshSite,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (harsh.place / "served").mkdir()
    (harsh.place / "served" / "words.txt").write_text("some words\n")
    with served(harsh.place / "served") as port:
        spec = SPEC.format(address=f"http://127.0.0.1:{port}", port=port, files=2 * MOST_FILES)
        assert DrivenJob(spec, "harsh.fetch", "harsh").run()["outcome"] == "finished"
        read = DrivenJob(spec, "harsh.only.read", "harsh")
        assert read.run()["outcome"] == "finished"
        log = (harsh.runs / read.job.log_file(1)).read_text()
        assert "some words\nnone\n" in log

    fill = DrivenJob(spec, "harsh.only.fill", "harsh")
    handle = fill.submit()
    monkeypatch.setattr(slurm_watch, "WRITE_PAUSE_S", 1.0)
    monkeypatch.setattr(slurm_watch.SlurmWatchOperator, "log", logging.getLogger("task"))
    with caplog.at_level(logging.WARNING, "task"), ThreadPoolExecutor(1) as pool:
        watching = pool.submit(fill.watch, handle)
        wait_until(lambda: "No space left on device" in caplog.text, 120, "a refused verdict")
        rows = checked(capsys)
        assert rows["accounting"]["state"] == WARNING
        assert "and 0 files on the file system" in rows["free"]["detail"]
        assert rows["free"]["state"] == FAILED
        assert "100%" in rows["quota"]["detail"]
        assert watching.running()
        for path in harsh.runs.rglob("file*[0-9]"):
            path.unlink()
        with pytest.raises(AirflowFailException, match="the file system is full"):
            watching.result(patient(120))
    assert checked(capsys)["free"]["state"] == OK

    (words,) = harsh.runs.rglob(".prefetched/files/words.txt")
    words.unlink()
    with pytest.raises(AirflowFailException, match=r"1 of 1 items are not in .*words.txt"):
        DrivenJob(spec, "harsh.only.again", "harsh").run()


def checked(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """Return the rows of ``cluster check``."""
    capsys.readouterr()
    check_cluster("harsh", with_job=False, patience_s=0, as_json=True)
    return {row["what"]: row for row in json.loads(capsys.readouterr().out)}


def test_a_job_that_is_not_visible_yet_is_not_submitted_again(harsh: HarshSite) -> None:
    """Slurm accepts the job, its output is lost, and the queue does not show the job for some seconds."""
    sbatch, calls = harsh.slurm / "sbatch", harsh.place / "calls"
    text = sbatch.read_text()
    lost = f"echo called >>{calls}\necho 'Socket timed out on send/recv operation' >&2\nexit 1\n"
    sbatch.write_text(text.replace("exec ", "", 1) + lost)
    request = harsh.cluster.request(
        harsh.runs / "hidden", "hidden", "am_run sleep 1", visibility_window_s=WINDOW_S
    )
    script = submission_script(request, SlurmCommands(slurm_bin=str(harsh.slurm)))

    def found() -> bool:
        outcome = parse_submission(harsh.cluster.run(script))
        assert outcome.status in ("pending", "adopted")
        return outcome.job_id is not None

    try:
        wait_until(found, 2 * WINDOW_S, "the job to be found")
    finally:
        sbatch.write_text(text)
    assert calls.read_text() == "called\n"
    assert len(harsh.cluster.jobs_named(request.attempt.job_name)) == 1
