"""A prefetch stage that fetches on the login node, and jobs after it, on a real cluster."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from driven_job import DrivenJob, environment

from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.integration, pytest.mark.trainer]

SPEC = """\
name: offline
point: only
slurm: {{time: 10m, gpus_per_node: 0}}
stages:
  fetch: {{kind: prefetch, scope: sweep, params: {{where: login, urls: ["{address}/words.txt"]}}}}
  read:
    kind: command
    parent: fetch
    command: [bash, -c, 'cat "$HF_HOME/files/words.txt"; echo "offline: $HF_HUB_OFFLINE"']
  again: {{kind: command, parent: read, command: ["true"]}}
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder; yield its address."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_jobs_read_what_the_login_node_fetched(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
    for name, value in environment(tmp_path, cluster).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "served").mkdir()
    with served(tmp_path / "served") as address:
        spec = SPEC.format(address=address)
        fetch = DrivenJob(spec, "offline.fetch")
        with pytest.raises(
            AirflowException, match=r"failed on the login node of local: .*1 of 1 items are missing"
        ):
            fetch.submit()
        (tmp_path / "served" / "words.txt").write_text("some words\n")
        assert fetch.run()["outcome"] == "finished"
    log = tmp_path / fetch.job.log_file(1)
    assert "file words.txt: in place" in log.read_text()  # the job had nothing to fetch

    read = DrivenJob(spec, "offline.only.read")
    assert read.run()["outcome"] == "finished"
    assert "some words\noffline: 1\n" in (tmp_path / read.job.log_file(1)).read_text()

    (words,) = tmp_path.rglob(".prefetched/files/words.txt")
    words.unlink()
    message = "what was to be fetched for a job without internet is not there: .*1 of 1 items are not in .*words.txt"
    with pytest.raises(AirflowFailException, match=message):
        DrivenJob(spec, "offline.only.again").run()
