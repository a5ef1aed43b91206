"""``prefetch`` on a real login node: the command of the stage runs there, with its environment and secrets."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.shipped_files import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from login_site import LoginSite

SPEC = """\
name: study
cluster: site
point: only
stages:
  fetch:
    kind: prefetch
    scope: sweep
    env: {GREETING: "it's here"}
    secrets: {HF_TOKEN: {file: %(token)s}}
    params: {urls: [%(url)s]}
  work: {kind: command, parent: fetch, command: [echo, done]}
"""


@contextmanager
def words_server(folder: Path) -> Iterator[str]:
    """Serve a folder with a file of words; yield its address."""
    folder.mkdir()
    (folder / "words.txt").write_text("some words\n")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def planned(site: LoginSite) -> LoginSite:
    profile = site.place / "sbatch" / "clusters" / "site.yaml"
    programs = shipped("Megatron-LM")
    profile.write_text(
        profile.read_text().replace("megatron_lm_dir: /opt/Megatron-LM", f"megatron_lm_dir: {programs}")
    )
    return site


def write(site: LoginSite, url: str) -> None:
    token = site.place / "token"
    token.write_text("hush")
    token.chmod(0o600)
    site.spec.write_text(SPEC % {"token": token, "url": url})


@pytest.mark.slow
def test_it_runs_the_stage_on_the_login_node(planned: LoginSite) -> None:
    with words_server(planned.place / "served") as address:
        write(planned, f"{address}/words.txt")
        first = planned.call("prefetch", "study")
        assert first.status == 0, first
        assert first.stdout == "study.fetch: on the login node of site\nfile words.txt: fetched\n"
        assert "hush" not in first.stdout + first.stderr
    home = planned.runs / "study" / ".prefetched"
    assert (home / "files" / "words.txt").read_bytes() == b"some words\n"
    again = planned.call("prefetch", "study")
    assert again.stdout == "study.fetch: on the login node of site\nfile words.txt: in place\n"


@pytest.mark.slow
def test_missing_items_are_reported(planned: LoginSite) -> None:
    write(planned, "http://127.0.0.1:9/words.txt")
    failed = planned.call("prefetch", "study")
    assert failed.status == 1
    assert "prefetch.py: error: file words.txt: " in failed.stdout
    assert "not everything is fetched on site; fix this and run the command again" in failed.stderr
    (planned.place / "token").chmod(0o644)
    failed = planned.call("prefetch", "study")
    assert failed.status == 1
    assert "can be read by others (mode 644); run chmod 600" in failed.stdout


def test_a_sweep_without_such_a_stage(site: LoginSite) -> None:
    answer = site.call("prefetch", "study")
    assert answer.status == 1
    assert answer.stderr == "study has no stage of kind prefetch with scope: sweep; add one\n"
