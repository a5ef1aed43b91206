"""Secrets reach the jobs of a sweep, and a search for them finds nothing else: while jobs run, and afterwards."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import secrets
import shlex
import sqlite3
import subprocess
import urllib.parse
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sweep_site import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

SPEC = """\
point: "{{{{ letter }}}}"
poll_interval: 1
sweep: {{params: {{letter: [a, b]}}}}
slurm: {{time: 5m}}
restart: {{failed: 1, backoff: 0}}
secrets:
  KEPT_PASSWORD: {{connection: kept}}
  KEPT_TOKEN: {{variable: kept_token}}
  KEPT_PRINTED: {{variable: kept_printed}}
  FILE_TOKEN: {{file: {file}}}
stages:
  work:
    kind: command
    array: true
    command:
      - bash
      - -c
      - |
        attempt=$(ls digests.* 2>/dev/null | wc -l)
        for name in KEPT_PASSWORD KEPT_TOKEN KEPT_PRINTED FILE_TOKEN; do
          printf %s "${{!name}}" | sha256sum
        done >"digests.$attempt"
        echo "what it should not print: $KEPT_PRINTED"
        until [ -e "go.$attempt" ]; do sleep 0.5; done
        test "$attempt" = 1 -o {{{{ letter }}}} = b
"""
NAMES = ("KEPT_PASSWORD", "KEPT_TOKEN", "KEPT_PRINTED", "FILE_TOKEN")


def new_secret() -> str:
    return f"""s3cret/"{secrets.token_hex(9)}"+ 'ü=&{secrets.token_hex(9)}\\"""


def forms(value: str) -> set[bytes]:
    """Return how a value may be written, of any of its parts that nobody could guess."""
    parts = [
        value,
        *(part for part in value.replace('"', "ü").replace("\\", "ü").split("ü") if len(part) > 15),
    ]
    found: set[str] = set()
    for part in parts:
        data = part.encode()
        found |= {
            part,
            data.hex(),
            data.hex().upper(),
            repr(part)[1:-1],
            html.escape(part),
            shlex.quote(part),
        }
        found |= {urllib.parse.quote(part), urllib.parse.quote_plus(part), urllib.parse.quote(part, safe="")}
        found |= {json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], data.decode("latin-1")}
        for shift in range(3):  # the value may begin anywhere in what was encoded
            encoded = base64.b64encode(b"\0" * shift + data).decode()
            inner = encoded[4 if shift else 0 : -4]
            found |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return {form.encode() for form in found if len(form) > 12}


class Search:
    """Looks for secrets in files, processes and what Slurm answers.

    :param values: of the secrets
    :param place: where their forms are written down for the search
    """

    def __init__(self, values: Iterable[str], place: Path) -> None:
        self.forms = set().union(*(forms(value) for value in values))
        self.patterns = place
        place.write_bytes(b"\n".join(self.forms) + b"\n")

    def holds(self, data: bytes) -> bool:
        return any(form in data for form in self.forms)

    def files(self, *folders: Path) -> set[str]:
        """Return the files that hold one, those that are compressed and the tables of databases too."""
        argv = ["grep", "-rlaF", "-f", str(self.patterns), *map(str, folders)]
        done = subprocess.run(argv, env={**os.environ, "LC_ALL": "C"}, capture_output=True, check=False)
        found = set(done.stdout.decode().splitlines())
        for folder in folders:
            for path in folder.rglob("*"):
                if "pins" in path.parts and path.is_file():
                    content = path.read_bytes()
                    if content[:1] == b"\x78" and self.holds(zlib.decompress(content)):
                        found.add(str(path))
                elif path.name == "airflow.db":
                    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                        if any(self.holds(line.encode()) for line in database.iterdump()):
                            found.add(f"{path} (dump)")
        return found

    def processes(self) -> tuple[set[str], set[str]]:
        """Return the command lines, and the environments of jobs, that hold one; of others none may."""
        arguments, environments = set(), set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if self.holds(line):
                arguments.add(f"{entry.name} {line[:200]!r}")
            if self.holds(environment):
                job = next(
                    (item for item in environment.split(b"\0") if item.startswith(b"SLURM_JOB_ID=")), b"none"
                )
                environments.add(job.decode().partition("=")[2])
        return arguments, environments


def test_they_reach_jobs_and_nothing_else(site: SweepSite, airflow: SiteAirflow, tmp_path: Path) -> None:
    values = {name: new_secret() for name in NAMES}
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(values["FILE_TOKEN"])
    airflow.keep_connection("kept", values["KEPT_PASSWORD"])
    airflow.keep_variable("kept_token", values["KEPT_TOKEN"])
    airflow.keep_variable("kept_printed", values["KEPT_PRINTED"])
    unprinted = Search(
        [value for name, value in values.items() if name != "KEPT_PRINTED"], tmp_path / "unprinted"
    )
    every = Search(values.values(), tmp_path / "every")
    (site.specs / "secretive.yaml").write_text(SPEC.format(file=file))
    airflow.wait_for_dag("secretive")
    run_id = airflow.trigger("secretive")
    points = [site.runs / "secretive" / letter for letter in "ab"]
    logs = {str(point / "logs" / f"work-{number}.out") for point in points for number in (1, 2)}

    def check_everywhere(delivered: set[str], jobs: set[str]) -> None:
        """Search files, processes and Slurm's answers; the jobs' own are found, which shows that the search works."""
        assert unprinted.files(site.place, site.cluster.place) == delivered
        assert every.files(site.place, site.cluster.place) - logs == {
            path
            for folder in {str(Path(path).parent) for path in delivered}
            for path in (f"{folder}/{name}" for name in NAMES if name.startswith("KEPT"))
        }
        arguments, environments = every.processes()
        assert arguments == set()
        assert environments == jobs
        for job in {row.job_id for rows in site.submissions("secretive.").values() for row in rows}:
            script = site.cluster.slurm("scontrol", "write", "batch_script", job, "-") if jobs else ""
            told = site.cluster.slurm("sacct", "-j", job, "-P", "-o", "ALL")
            told += site.cluster.slurm("scontrol", "show", "job", "-dd") + script
            assert "JobId=" in told or not jobs
            assert not every.holds(told.encode())

    expected = [hashlib.sha256(values[name].encode()).hexdigest() for name in NAMES]

    def both_began(number: int, expected_points: list[Path]) -> bool:
        return all((point / f"digests.{number}").is_file() and "FILE" or False for point in expected_points)

    def digests(point: Path, number: int) -> list[str]:
        return [line.split()[0] for line in (point / f"digests.{number}").read_text().splitlines()]

    wait_until(lambda: both_began(0, points), 240, "both jobs to have their secrets")
    wait_until(lambda: all(len(digests(point, 0)) == 4 for point in points), 30, "both jobs to go on")
    assert [digests(point, 0) for point in points] == [expected, expected]
    running = site.cluster.slurm("squeue", "-h", "-o", "%A", "-n", "").split()
    delivered = {
        f"{point}/.jobs/work/1/secrets/{name}" for point in points for name in ("KEPT_PASSWORD", "KEPT_TOKEN")
    }
    check_everywhere(delivered, set(running))
    for point in points:
        (point / "go.0").touch()
    # the first attempt of one has failed; the second gets them anew
    wait_until(lambda: both_began(1, points[:1]), 120, "the second attempt to have its secrets")
    wait_until(lambda: len(digests(points[0], 1)) == 4, 30, "the second attempt to go on")
    assert digests(points[0], 1) == expected
    (points[0] / "go.1").touch()
    assert airflow.ended("secretive", run_id, 240) == "success"
    check_everywhere(set(), set())
    assert "what it should not print" in "".join(
        path.read_text(errors="replace") for path in (airflow.home / "logs").rglob("*.log")
    )
