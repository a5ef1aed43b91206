"""A cluster's login node for the command line: a real sshd, run directories as files, a short stand-in for Slurm."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from ssh_server import USER, SshServer, make_key

from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.point_choice import choose_points
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from command_line import Answer

    from airflow_megatron.spec.model.jobs import Job

SPEC = """\
name: study
description: two ways
cluster: site
point: "{{ way }}"
params: {way: null}
sweep: {way: [left, right]}
stages:
  work: {kind: command, command: [echo, "{{ way }}"]}
  check: {kind: command, command: [echo, done], parent: work}
"""
PROFILE = """\
ssh_conn_id: slurm_site
run_root: {runs}
python: /usr/bin/python3
megatron_lm_dir: /opt/Megatron-LM
slurm_bin: {slurm}
"""


class LoginSite:
    """A project of its own with one spec, and the login node of its cluster.

    :param place: a folder for all of it
    :param call: runs the command line
    """

    def __init__(self, place: Path, call: Callable[..., Answer]) -> None:
        self.place, self.call = place, call
        self.spec = place / "sweep_specs" / "study.yaml"
        self.runs, self.slurm = place / "runs", place / "slurm"
        self.server = SshServer(place / "sshd", make_key(place / "key"))

    def set_up(self) -> None:
        """Write the project, the profile and the stand-ins, and start the sshd."""
        shutil.copytree(project.project_root() / "sbatch", self.place / "sbatch")
        (self.place / "Megatron-LM").symlink_to(project.project_root() / "Megatron-LM")
        profile = PROFILE.format(runs=self.runs, slurm=self.slurm)
        (self.place / "sbatch" / "clusters" / "site.yaml").write_text(profile)
        self.spec.parent.mkdir()
        self.spec.write_text(SPEC)
        self.slurm.mkdir()
        self.command("squeue", "")
        self.command("sacct", "")
        self.command("scancel", f'printf "%s\\n" "$*" >>{self.slurm}/cancelled')
        self.server.start()

    def command(self, name: str, text: str) -> None:
        """Write one of Slurm's commands."""
        (self.slurm / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.slurm / name).chmod(0o755)

    def queue(self, *jobs: tuple[int, str, str]) -> None:
        """Write a squeue that lists jobs, each as id, state and name, in the format of its call."""
        rows = {
            "queue": [f"queue|{job_id}|{name}" for job_id, _, name in jobs],
            "poll": [f"$mark|{job_id}|{state}|0|0|0|1|n1|None|{name}" for job_id, state, name in jobs],
        }
        lists = {key: "\n".join(["cat <<EOF", *lines, "EOF"]) for key, lines in rows.items()}
        self.command(
            "squeue",
            "for last; do :; done\nmark=${last%%|*}\n"
            f'if [ "$mark" = queue ]; then\n{lists["queue"]}\nelse\n{lists["poll"]}\nfi',
        )

    def connection(self) -> str:
        """Return Airflow's connection to the login node, as its environment variable holds it."""
        extra = {"key_file": str(self.place / "key"), "host_key": self.server.public_host_key}
        return json.dumps(
            {
                "conn_type": "ssh",
                "host": "127.0.0.1",
                "port": self.server.port,
                "login": USER,
                "extra": extra,
            }
        )

    def run_sweep(self, run_id: str, points: str = "") -> list[Job]:
        """Store the plan of a run as its `plan` does; return its jobs."""
        sweep = load_sweep(self.spec)
        around = PlanEnvironment.now("site")
        plan = check_sweep(sweep, around.cluster, choose_points(sweep, points))
        pinned = PinnedSweep.stored(sweep, self.spec.read_text(), plan, around, PinStore(), choice=points)
        pinned.use(sweep.name, run_id)
        return list(pinned.plan().jobs)

    def submitted(self, job: Job, job_id: str) -> Path:
        """Write the records of a submission to the run directory; return the attempt's folder."""
        attempt = self.place / job.stage_dir / "1"
        attempt.mkdir(parents=True)
        (attempt / "jobid").write_text(f"{job_id}\n")
        (attempt / "job.json").write_text(json.dumps({"job": job.name, "attempt": 1}))
        return attempt

    def finished(self, job: Job, job_id: str) -> None:
        """Write the records of a successful job."""
        attempt = self.submitted(job, job_id)
        record = {"exit_code": 0, "started": 1000.0, "ended": 1060.5, "job_id": job_id}
        (attempt / "exit.json").write_text(json.dumps(record))
        verdict = {"outcome": "finished", "reason": "exit code 0", "attempt": 1}
        (attempt.parent / "verdict.json").write_text(json.dumps(verdict))
