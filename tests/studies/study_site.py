"""Studies of reduced size on a separate cluster, run with ``airflow dags test``."""

from __future__ import annotations

import fnmatch
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from shipped import refused_by_upstream, shipped_plan, unreadable_scripts
from sweep_site import PROJECT, SweepSite

from airflow_megatron.megatron.logs.log_lines import IterationRecord, LogParser
from airflow_megatron.plan.point_choice import choose_points
from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.documents.yaml_document import load_yaml_file
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.native.extension import extended
from airflow_megatron.spec.native.overrides import overridden
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from slurm_cluster import SlurmCluster
    from studies import Study

    from airflow_megatron.spec.model.jobs import Job

HERE = Path(__file__).resolve().parent
_ENVIRONMENT = threading.RLock()
"""Held by whoever needs the project's folders, or this site's in their place, while several studies run."""
RELEASE = "core_v0.16.1"
TEXT = ("--train-tokens", "60000", "--valid-tokens", "8000", "--test-tokens", "8000")
EVALUATION = ("--heldout-pieces", "3", "--questions", "6")


@dataclass(frozen=True)
class Row:
    """The result of a study, or of its points that are not run here."""

    study: str
    points: int
    jobs: int
    seconds: float
    outcome: Literal["finished", "failed", "not run here"]
    reason: str = ""


class StudySite(SweepSite):
    """A project folder with the shrunk specs, upstream, and prepared text.

    :param upstream: a checkout of :data:`RELEASE`
    """

    def __init__(self, place: Path, cluster: SlurmCluster, upstream: Path) -> None:
        super().__init__(place, cluster)
        self.upstream = upstream
        self.data = self.local / "data"

    def prepare_folders(self) -> None:
        """Create the folders; one small corpus replaces the data sets of the shipped specs."""
        project = self.place / "project"
        project.mkdir()
        shutil.copytree(PROJECT / "sbatch", project / "sbatch")
        for name in ("Megatron-LM", "dags", "docker", "plugins"):
            (project / name).symlink_to(PROJECT / name)
        (self.place / "dags").symlink_to(PROJECT / "dags")
        self.specs.mkdir()
        (self.local / "Megatron-LM").mkdir(parents=True)
        (self.local / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
        (self.local / "Megatron-LM" / RELEASE).symlink_to(self.upstream)
        python, program = self.local / "venv-trainer/bin/python", PROJECT / "Megatron-LM/prepare_data.py"
        subprocess.run([python, program, "--output", self.data, *TEXT, *EVALUATION], check=True)
        (self.data / "c4").mkdir()
        for suffix in ("bin", "idx"):
            (self.data / "c4" / f"merged.{suffix}").symlink_to(self.data / f"train_text_document.{suffix}")

    def run(self, study: Study, shipped: Path | None = None, timeout: float = 900) -> Row:
        """Run a study's chosen points to their ends.

        :param shipped: the spec; that of ``sweep_specs/`` when left out
        """
        begun = time.monotonic()
        settings = [
            text.replace("{data}", str(self.data)).replace("{place}", str(HERE)) for text in study.settings
        ]
        shipped = shipped or PROJECT / "sweep_specs" / f"{study.spec}.yaml"
        name = _name(study)
        document = overridden(extended(load_yaml_file(shipped)), [*settings, f"name={name}"])
        path = self.specs / f"{name}.yaml"
        path.write_text(json.dumps(document.data))
        try:
            plan = self._plan(path, study.select)
            status, output = self.run_dags_test(name, {"points": study.select}, timeout)
            (self.place / f"{name}.log").write_text(output)
            reason = self._reason(plan) or ("" if status == 0 else output.strip().splitlines()[-1])
        except (SpecError, AssertionError) as error:
            return Row(_title(study), 0, 0, time.monotonic() - begun, "failed", str(error))
        seconds = time.monotonic() - begun
        return Row(
            _title(study),
            len(plan.points),
            len(plan.jobs),
            seconds,
            "failed" if reason else "finished",
            reason or _expected(plan),
        )

    def _plan(self, path: Path, select: str) -> Plan:
        with _ENVIRONMENT, pytest.MonkeyPatch.context() as patch:
            for name, value in self.folders.items():
                patch.setenv(name, value)
            sweep = load_sweep(path)
            return check_sweep(sweep, load_cluster("local"), choose_points(sweep, select))

    def _reason(self, plan: Plan) -> str:
        """Return the reason of the first job that has not finished or not completed its training."""
        for job in plan.jobs:
            verdict = _json(Path(job.stage_dir) / "verdict.json")
            if verdict.get("outcome") != "finished":
                return f"{job.name}: {verdict.get('reason') or 'no verdict'}"
            if job.expect and verdict.get("expected") != job.expect:
                return f"{job.name} did not end as expected ({job.expect})"
            wanted = job.params.get("train_iters")
            if job.runs_trainer and not job.expect and self.trained(job) != wanted:
                return f"{job.name} trained to iteration {self.trained(job)}, not {wanted}"
        return ""

    def trained(self, job: Job) -> int | None:
        """Return the last iteration in the logs of a training's attempts."""
        iterations: list[int] = []
        logs = (Path(job.log_file(number)) for number in itertools.count(1))
        for path in itertools.takewhile(Path.exists, logs):
            log = LogParser()
            records = [*log.feed(path.read_bytes()), *log.finish()]
            iterations += [record.iteration for record in records if isinstance(record, IterationRecord)]
        return max(iterations, default=None)


def not_run(study: Study, upstream: Path) -> list[Row]:
    """Check a shipped spec as it is, and return a row for the points that this machine cannot run.

    :raises AssertionError: when a script cannot be read by bash, or upstream refuses a command
    """
    begun = time.monotonic()
    with _ENVIRONMENT:
        plan = shipped_plan(study.spec)
        unreadable = unreadable_scripts(plan)
        assert not unreadable, unreadable
        asked, refused = refused_by_upstream(plan.jobs, upstream)
    assert not refused, refused
    rows = []
    for pattern, reason in study.not_run.items():
        points = [point for point in plan.points if fnmatch.fnmatchcase(point, pattern)]
        jobs = [job for job in plan.jobs if job.point in points]
        checked = "linted, rendered" + (", taken by upstream's parser and validate_args" if asked else "")
        seconds = time.monotonic() - begun
        rows.append(Row(study.spec, len(points), len(jobs), seconds, "not run here", f"{reason}; {checked}"))
    return rows


def table(rows: list[Row]) -> str:
    """Return the rows as aligned text."""
    heads = ("spec", "points", "jobs", "seconds", "outcome", "reason")
    cells = [
        heads,
        *((row.study, row.points, row.jobs, f"{row.seconds:.0f}", row.outcome, row.reason) for row in rows),
    ]
    widths = [max(len(str(line[column])) for line in cells) for column in range(5)]
    return "\n".join(
        "  ".join(
            [*(str(cell).ljust(width) for cell, width in zip(line, widths, strict=False)), str(line[5])]
        )
        for line in cells
    )


def _expected(plan: Plan) -> str:
    expected = [job.point for job in plan.jobs if job.expect]
    return f"out of memory, as expected: {', '.join(expected)}" if expected else ""


def _title(study: Study) -> str:
    return f"{study.spec} {study.label}".rstrip()


def _name(study: Study) -> str:
    label = "".join(character if character.isalnum() else "_" for character in study.label)
    return f"{study.spec}-{label}" if label else study.spec


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    return found
