"""Jobs that DAGs of users describe."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from airflow_megatron.plan.described_job import (
    DescriptionError,
    JobDescription,
    connection_profile,
    restart_section,
    run_directory,
    seconds_of,
)
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.pinned import plan_environment_of
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.submission.sbatch_options import directive_options
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


@pytest.mark.parametrize("work", [{"command": "hostname"}, {"script": "#!/bin/sh\nhostname\n"}])
def test_sbatch_reads_a_folder_with_blanks_as_one_value(work: dict[str, str]) -> None:
    description = JobDescription(name="dag.task", owner="dag", **work)
    job = description.job("/home/Zoë M/it's/run", PROFILE, is_named=False)
    words = directive_options(job_script(job, plan_environment_of(job).cluster, 1))
    assert "--chdir=/home/Zoë M/it's/run" in words
    assert f"--output={job.log_file(1)}" in words


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
        ({"command": "a", "outputs": "result.h5"}, "outputs is 'result.h5'; write a list of paths"),
        ({"command": "a", "outputs": ["~/result.h5"]}, "'~/result.h5'; no shell expands ~"),
        ({"command": "a", "outputs": [""]}, "outputs holds ''; write paths"),
        ({"command": "a", "outputs": [None]}, "outputs holds None; write paths"),
        ({"command": "  \n"}, "give either command or script"),
        ({"command": ["", "x"]}, "command begins with ''"),
        ({"command": ["cat", None]}, "command holds None; write words"),
        ({"command": 5}, "command is 5; write a line for bash, or a list of words"),
        ({"command": b"hostname"}, "command is b'hostname'; write a line for bash, or a list of words"),
        ({"command": "a\0b"}, "NUL character"),
        ({"script": "#!/bin/sh\na\0b"}, "NUL character"),
        ({"script": 5}, "script is 5; write the text"),
        ({"script": "#!/bin/bash\r\nhostname\r\n"}, "its lines end in CR LF, which sbatch refuses"),
        ({"command": "a", "env": "A=1"}, "env is 'A=1'; write a mapping of names to values"),
        ({"command": "a", "env": {"A B": "1"}}, "'A B' cannot be the name of an environment variable"),
        (
            {"command": "a", "env": {"SLURM_JOB_ID": "1"}},
            "env.SLURM_JOB_ID: Slurm sets it in each job; drop it",
        ),
        ({"command": "a", "env": {"A": {"b": 1}}}, "env.A is {'b': 1}; write text or a number"),
        ({"command": "a", "env": {"A": "\0"}}, "NUL character"),
        ({"command": "a", "resources": {"nodes": 0}}, "nodes: Input should be greater than or equal to 1"),
        ({"command": "a", "resources": {"cpus_per_task": "0"}}, "cpus_per_task: Input should be greater"),
        ({"command": "a", "resources": {"nodes": 10**10}}, "nodes: Input should be less than"),
        ({"command": "a", "resources": {"mem": "64 GB"}}, "mem: '64 GB' is not a memory size of Slurm"),
        ({"command": "a", "resources": {"mem": 64}}, "mem: 64 is not a memory size of Slurm"),
        ({"command": "a", "resources": {"exclude": ["n1"]}}, "exclude is ['n1']; write text"),
        ({"command": "a", "resources": {"partition": "a\nb"}}, "partition is 'a\\nb'; write one line"),
        ({"command": "a", "resources": {"options": 5}}, "options is 5; write a list of words"),
    ],
)
def test_a_job_that_cannot_be_submitted_is_refused_with_a_hint(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError) as caught:
        described(**values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"retries": 3}, r"restart: retries: Extra inputs"),
        (3, r"restart is 3; write a mapping"),
        ("failed", r"restart is 'failed'; write a mapping"),
    ],
)
def test_a_restart_policy_that_there_is_not(policy: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        restart_section(policy)


def test_variables_without_a_value_are_left_out() -> None:
    job = described(command="a", env={"A": None, "B": 1, "C": True, "D": "é\n'"})
    assert job.env == {"B": "1", "C": "True", "D": "é\n'"}


@pytest.mark.parametrize("name", ["_private.task", ".hidden", "über.größe", "-", ""])
def test_every_task_has_a_name_that_slurm_takes(name: str) -> None:
    job = replace(described(command="hostname"), name=name)
    assert attempt_of(job, 1).job_name[0].isalnum()


def test_every_task_instance_has_a_directory_of_its_own() -> None:
    names = ["a", "a.b", "a b", "a:b", "a_b", "..", ".", "a/b", "ä", "x" * 300, "x" * 301]
    keys = [(dag, "r", task, index) for dag in names for task in names for index in (-1, 0, 1)]
    found = [run_directory("/jobs/", *key) for key in keys]
    assert len(set(found)) == len(keys)
    assert all(".." not in path.split("/") and path.isascii() for path in found)
    assert run_directory("/jobs", "dag", "manual__1", "task", -1) == "/jobs/dag/manual__1/task"


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0.2, 0.2),
        (15, 15),
        ("30s", 30),
        ("1h", 3600),
        ("50", 50),
        (timedelta(minutes=2, milliseconds=500), 120.5),
    ],
)
def test_times_of_a_task_are_numbers_texts_or_timedeltas(value: Any, seconds: float) -> None:
    assert seconds_of("timeout", value) == seconds


@pytest.mark.parametrize(
    "value",
    [None, True, -1, float("nan"), float("inf"), 10**400, "soon", "{{ 5 }}", [5], timedelta(seconds=-1)],
)
def test_other_times_of_a_task_are_refused(value: Any) -> None:
    with pytest.raises(DescriptionError, match="write seconds, a text such as '30s', or a timedelta"):
        seconds_of("timeout", value)
