"""Only the jobs of a sweep get its secrets: a search during and after the jobs finds them nowhere else."""

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
from patience import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sweep_site import SiteAirflow, SweepSite

pytestmark = pytest.mark.integration

SPEC = """\
point: "{{{{ letter }}}}"
poll_interval: 1
sweep: {{params: {{letter: [a, b]}}}}
slurm: {{time: 30m}}
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
    """Return possible encodings of a value and of its parts that are long enough to be unique."""
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
        for shift in range(3):  # the value may start at any offset of the encoded text
            encoded = base64.b64encode(b"\0" * shift + data).decode()
            inner = encoded[4 if shift else 0 : -4]
            found |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return {form.encode() for form in found if len(form) > 12}


class Search:
    """Searches for secrets in files, processes and the output of Slurm.

    :param values: values of the secrets
    :param place: folder for the search patterns
    """

    def __init__(self, values: Iterable[str], place: Path) -> None:
        self.forms = set().union(*(forms(value) for value in values))
        self.patterns = place
        place.write_bytes(b"\n".join(self.forms) + b"\n")

    def holds(self, data: bytes) -> bool:
        return any(form in data for form in self.forms)

    def files(self, *folders: Path) -> set[str]:
        """Return the files that contain a secret, including compressed files and database tables."""
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
        """Return the command lines and job environments that contain a secret; other processes must have none."""
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


class Sweep:
    """Two points, each with a job that writes the digests of its secrets and waits for a file.

    :param values: variable → value
    """

    def __init__(self, site: SweepSite, values: dict[str, str]) -> None:
        self.site = site
        self.points = [site.runs / "secretive" / letter / "work" for letter in "ab"]
        self.logs = {str(point / "logs" / f"work-{number}.out") for point in self.points for number in (1, 2)}
        self.expected = [hashlib.sha256(value.encode()).hexdigest() for value in values.values()]

    def have_secrets(self, points: Sequence[Path], number: int) -> None:
        """Wait until jobs have written the digests of their secrets, and check these."""
        files = [point / f"digests.{number}" for point in points]

        def digests(file: Path) -> list[str]:
            return [line.split()[0] for line in file.read_text().splitlines()] if file.exists() else []

        wait_until(
            lambda: all(len(digests(file)) == len(NAMES) for file in files), 240, "jobs to have secrets"
        )
        assert [digests(file) for file in files] == [self.expected] * len(files)

    def delivered(self, names: Sequence[str]) -> set[str]:
        return {f"{point}/.jobs/work/1/secrets/{name}" for point in self.points for name in names}

    def printed_by_slurm(self) -> str:
        """Return all output of Slurm's commands about the jobs, including their scripts."""
        rows = [row for rows in self.site.submissions("secretive.").values() for row in rows]
        slurm = self.site.cluster.slurm
        scripts = [
            slurm("scontrol", "write", "batch_script", row.job_id, "-")
            for row in rows
            if row.state == "RUNNING"
        ]
        accounted = slurm("sacct", "-j", ",".join(row.job_id for row in rows), "-P", "-o", "ALL")
        return "".join([slurm("scontrol", "show", "job", "-dd"), accounted, *scripts])

    def requeue(self, point: Path) -> None:
        """Make Slurm requeue the running job of a point, in the same attempt."""
        job_id = (point / ".jobs" / "work" / "1" / "jobid").read_text().partition(";")[0]
        slurm = self.site.cluster.slurm
        slurm(
            "scontrol", "update", f"JobId={job_id}", "Requeue=1"
        )  # as on sites where Slurm requeues by default
        slurm("scontrol", "requeue", job_id)
        wait_until(
            lambda: "JobState=PENDING" in slurm("scontrol", "show", "job", job_id),
            60,
            "Slurm to requeue the job",
        )
        self.site.cluster.start_again(job_id)

    def running(self) -> set[str]:
        rows = [row for rows in self.site.submissions("secretive.").values() for row in rows]
        return {row.job_id for row in rows if row.state == "RUNNING"}


def test_secrets_reach_only_jobs(site: SweepSite, airflow: SiteAirflow, tmp_path: Path) -> None:
    values = {name: new_secret() for name in NAMES}
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(values["FILE_TOKEN"])
    airflow.keep_connection("kept", values["KEPT_PASSWORD"])
    airflow.keep_variable("kept_token", values["KEPT_TOKEN"])
    airflow.keep_variable("kept_printed", values["KEPT_PRINTED"])
    printed = Search([values["KEPT_PRINTED"]], tmp_path / "printed")
    others = Search([value for name, value in values.items() if name != "KEPT_PRINTED"], tmp_path / "others")
    (site.specs / "secretive.yaml").write_text(SPEC.format(file=file))
    sweep = Sweep(site, values)
    folders = (site.place, site.cluster.place)
    airflow.read_specs()
    airflow.wait_for_dag("secretive")
    run_id = airflow.trigger("secretive")

    sweep.have_secrets(sweep.points, 0)
    # the search finds the files and processes of the jobs, which shows that it works
    assert others.files(*folders) == sweep.delivered(["KEPT_PASSWORD", "KEPT_TOKEN"])
    assert printed.files(*folders) - sweep.logs == sweep.delivered(["KEPT_PRINTED"])
    wait_until(lambda: len(sweep.running()) == 2, 60, "accounting to know that both jobs run")
    jobs = sweep.running()
    for search in (others, printed):
        assert search.processes() == (set(), jobs)
        assert not search.holds(sweep.printed_by_slurm().encode())

    sweep.requeue(sweep.points[1])
    (sweep.points[0] / "go.0").touch()
    # the first attempt of the first point has failed, that of the other was requeued
    sweep.have_secrets(sweep.points, 1)
    for search in (others, printed):
        assert search.processes()[0] == set()
        assert not search.holds(sweep.printed_by_slurm().encode())
    for point in sweep.points:
        (point / "go.1").touch()
    assert airflow.ended("secretive", run_id, 240) == "success"
    wait_until(
        lambda: all(search.processes() == (set(), set()) for search in (others, printed)),
        60,
        "the jobs' last processes",
    )
    assert others.files(*folders) == set()
    assert printed.files(*folders) <= sweep.logs
    for search in (others, printed):
        assert not search.holds(sweep.printed_by_slurm().encode())
    log = "".join(path.read_text(errors="replace") for path in (airflow.home / "logs").rglob("*.log"))
    assert "what it should not print: ***" in log
