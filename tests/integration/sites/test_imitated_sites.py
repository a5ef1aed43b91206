"""The imitation of each site applies the limits of the site, and ``lint`` reports violations before."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from imitated_site import container_words, described_size, has_internet, is_of_partition, write_description
from patience import deadline_in
from site_profiles import (
    VARIABLES,
    at_the_limit,
    beyond,
    jobs_beyond,
    makes_jobs_wait,
    only_warns,
    planned,
    profile,
    reported,
)
from slurm_cluster import SlurmCluster

from airflow_megatron.cli.setup.new_project import site_names
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.submission.single_job import SubmissionRequest
from airflow_megatron.spec.trust.permitted_variables import SETTING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

REPRESENTATIVE = "frontier"
"""The site whose imitation is tested with every change: its walltime depends on the number of nodes."""
LONGEST_START_S = 30
STAND_IN = """\
#!/bin/bash
# Runs what follows the image, on the host.
while [[ $# -gt 0 && "$1" != *.sif ]]; do shift; done
shift
{words} "$@"
"""
CHAIN = """\
sweep: {{lr: [1e-3]}}
stages:
  tokenize: {{kind: command, scope: sweep, command: [bash, -c, "echo tokenized >> {seen}"]}}
  train:
    kind: command
    scope: sweep
    parent: tokenize
    command: [bash, -c, "(: </dev/tcp/127.0.0.1/{port}) && echo online >> {seen}; echo trained >> {seen}"]
"""
SITES = [
    pytest.param(site, marks=pytest.mark.integration if site == REPRESENTATIVE else pytest.mark.sites)
    for site in site_names()
]


class ImitatedSite:
    """The running imitation of a site and its profile."""

    def __init__(self, name: str, place: Path) -> None:
        self.folder = place
        self.profile = profile(name)
        self.cluster = SlurmCluster(place / "cluster")
        self.start_s = 0.0

    def up(self) -> None:
        described = write_description(self.profile, self.folder)
        began = time.monotonic()
        self.cluster.control("up", "--imitate", str(described), *described_size(self.profile))
        self.start_s = time.monotonic() - began

    def equipped(self) -> ClusterProfile:
        """Return the profile for jobs on this machine, with stand-ins for its container runtime and its modules."""
        programs = self.folder / "programs"
        programs.mkdir()
        for name in ("apptainer", "singularity"):
            (programs / name).write_text(STAND_IN.format(words=container_words(self.profile)))
            (programs / name).chmod(0o755)
        setup = [f'export PATH="{programs}:$PATH"', *self.profile.setup]
        return self.profile.model_copy(update={"setup": setup, "modules": []})

    def hold(self, cluster: ClusterProfile, slurm: dict[str, Any], jobs: int = 1) -> str:
        """Return sbatch's error for a rendered script; empty if Slurm accepts the job, which is then cancelled.

        :param jobs: number of jobs to submit, as an array
        """
        script = job_script(planned(cluster, slurm).jobs[0], cluster, 1)
        array = "" if jobs == 1 else f"--array=1-{jobs} "
        answer = self.cluster.run(
            f"job=$(sbatch --parsable --hold {array}--output=/dev/null <<'END OF JOB'\n{script}\nEND OF JOB\n) || "
            "exit 1\n"
            'scancel "$job"'
        )
        return "" if answer.exit_status == 0 else answer.stderr.strip() or f"status {answer.exit_status}"


@pytest.fixture(scope="module", params=SITES)
def imitated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ImitatedSite]:
    place = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SETTING, ",".join(VARIABLES))
        values = {
            **VARIABLES,
            "SLURM_ACCOUNT": "local",
            "SLURM_QOS": "acc_1",
            "OUTPUT_DIR": str(place / "output"),
        }
        for name, value in values.items():
            patch.setenv(name, value)
        site = ImitatedSite(request.param, place)
        try:
            site.up()
            yield site
        finally:
            site.cluster.control("down", "--purge")


def test_the_imitation_is_up_in_time(imitated: ImitatedSite, record_property: Any) -> None:
    record_property("start_s", round(imitated.start_s, 1))
    print(f"| {imitated.profile.name} | {imitated.start_s:.1f} s |")
    assert imitated.start_s <= LONGEST_START_S


def test_slurm_refuses_what_each_rule_refuses_and_lint_does_before(imitated: ImitatedSite) -> None:
    site = imitated.profile
    careless = site.model_copy(update={"rules": [], "partitions": {}})
    for rule in site.rules:
        jobs = jobs_beyond(rule)
        given, slurm = beyond(rule, site)
        errors, warnings = reported(given, slurm, jobs)
        assert rule.source in (warnings if only_warns(rule) else errors)
        if rule.advice or rule.no_run_root or makes_jobs_wait(rule):  # Slurm accepts these
            continue
        assert imitated.hold(careless, at_the_limit(rule), jobs - 1 or 1) == "", rule.rule
        if rule.max_jobs is not None:
            # submissions wait after errors with these names: slurm/submission/refusals.py
            complaint = imitated.hold(careless, slurm, jobs)
            assert re.search("QOSMaxSubmitJobPerUserLimit|AssocMaxSubmitJobLimit", complaint), rule.rule
        elif rule.whole_node_gpus is None:
            without = given.model_copy(update={"rules": [], "partitions": {}})
            complaint = imitated.hold(without, slurm)
            assert complaint, f"Slurm takes a job against: {rule.rule}"
            if not is_of_partition(rule):
                # without GPUs in its configuration, Slurm refuses --gres before the filter does
                assert rule.rule in complaint or "(gres) specification" in complaint


def test_a_chain_runs_with_the_profile(imitated: ImitatedSite) -> None:
    site, cluster = imitated.equipped(), imitated.cluster
    seen = imitated.folder / "seen"
    port = cluster.description["ssh"]["port"]
    plan = planned(site, {"nodes": 2, "time": "10m"}, CHAIN.format(seen=seen, port=port))
    before: list[str] = []
    for job in plan.jobs:
        request = SubmissionRequest(
            attempt=attempt_of(job, 1),
            script=job_script(job, site, 1),
            job_json={"job": job.name},
            claim_token=f"test-{os.urandom(6).hex()}",
            log_dir=f"{job.run_dir}/logs",
            dependencies=tuple(f"afterok:{earlier}" for earlier in before),
        )
        before.append(str(cluster.submit_patiently(request).job_id))
    assert len(before) == 2
    deadline = deadline_in(60)
    while (
        state := cluster.slurm("squeue", "-h", "-t", "all", "-j", before[-1], "-o", "%T %r")
    ) != "COMPLETED None":
        assert "Never" not in state, cluster.slurm("scontrol", "show", "job")
        assert time.monotonic() < deadline, state
        time.sleep(0.5)
    online = "online\n" if has_internet(site) else ""
    assert seen.read_text() == f"tokenized\n{online}trained\n"
