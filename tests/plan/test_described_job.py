"""Jobs that DAGs of users describe."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_megatron.plan.described_job import (
    DescriptionError,
    JobDescription,
    connection_profile,
    restart_section,
    run_directory,
)
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.pinned import plan_environment_of
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.jobs import Job

PROFILE = connection_profile("alps", "/scratch/jobs", slurm_bin="/opt/slurm/bin", login_shell=True)


def described(**values: Any) -> Job:
    description = JobDescription(name="dag.task", owner="dag", **values)
    return description.job("/scratch/jobs/dag/run/task", PROFILE, is_named=False)


def directives(job: Job) -> list[str]:
    script = job_script(job, plan_environment_of(job).cluster, 1)
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def test_it_holds_everything_that_a_later_process_needs() -> None:
    job = Job.from_json(described(command="hostname").to_json())
    cluster = plan_environment_of(job).cluster
    assert (cluster.ssh_conn_id, cluster.slurm_bin, cluster.login_shell) == ("alps", "/opt/slurm/bin", True)
    assert job.run_dir == "/scratch/jobs/dag/run/task"
    assert job.command == ("bash", "-c", "hostname")


def test_a_command_asks_for_its_resources() -> None:
    lines = directives(
        described(
            command=["python3", "a b.py"],
            resources={
                "nodes": "2",
                "time": "1h30m",
                "mem": "8G",
                "gpus_per_node": 4,
                "options": "--exclusive",
            },
        )
    )
    assert {"--nodes=2", "--time=01:30:00", "--mem=8G", "--gpus-per-node=4", "--exclusive"} <= set(lines)


def test_a_script_asks_for_them_too_and_they_win() -> None:
    lines = directives(
        described(
            script="#!/bin/bash\n#SBATCH --time=5\n#SBATCH --output=mine\nhostname\n",
            resources={"nodes": 2, "time": timedelta(hours=2), "options": ["--requeue"]},
        )
    )
    (ours,) = [line for line in lines if "--nodes" in line]
    assert ours == "--nodes=2 --time=02:00:00 --requeue"
    assert lines.index(ours) > lines.index("--time=5")
    assert "--output=mine" not in lines


def test_a_profile_of_the_project_gives_what_is_left_out() -> None:
    profile = load_cluster("local")
    job = JobDescription(name="a", owner="d", command="true").job("/r", profile, is_named=True)
    assert not job.profile
    assert job.slurm.gpus_per_node is None, "a command that names no GPUs gets none"
    assert job.slurm.partition == profile.slurm.partition


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "give either command or script"),
        ({"command": "a", "script": "#!/bin/sh\nb"}, "give either command or script"),
        ({"script": "hostname"}, "begins with #!/bin/bash"),
        ({"command": "a", "resources": {"nodes": "two"}}, "nodes is 'two'; write a whole number"),
        ({"command": "a", "resources": {"nodes": "{{ x }}"}}, "nodes is '{{ x }}'; write a whole number"),
        ({"command": "a", "resources": {"time": "soon"}}, "time: 'soon' is not a duration; write 30m"),
        ({"command": "a", "resources": {"options": ["--output=x"]}}, "--output=x, which a job may not set"),
        ({"script": "#!/bin/sh\n#SBATCH --array=1-3\na"}, "--array=1-3, which a job may not set"),
        ({"command": "a", "outputs": ["b\nc"]}, "holds a control character"),
    ],
)
def test_a_job_that_cannot_be_submitted_is_refused_with_a_hint(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        described(**values)
    assert message in str(caught.value)


def test_a_restart_policy_that_there_is_not() -> None:
    with pytest.raises(DescriptionError, match=r"restart: retries: Extra inputs"):
        restart_section({"retries": 3})


def test_every_task_instance_has_a_directory_of_its_own() -> None:
    names = ["a", "a.b", "a b", "a:b", "a_b", "..", ".", "a/b", "ä", "x" * 300, "x" * 301]
    keys = [(dag, "r", task, index) for dag in names for task in names for index in (-1, 0, 1)]
    found = [run_directory("/jobs/", *key) for key in keys]
    assert len(set(found)) == len(keys)
    assert all(".." not in path.split("/") and path.isascii() for path in found)
    assert run_directory("/jobs", "dag", "manual__1", "task", -1) == "/jobs/dag/manual__1/task"
