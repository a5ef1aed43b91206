"""Partitions of a cluster profile: their checks before submission, and the values that they add to a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from checked_chain import TRUNK, changed

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job

PARTITIONS: dict[str, Any] = {
    "gpu": {
        "gpus_per_node": 4,
        "cpus_per_node": 48,
        "gpu_type": "a100",
        "max_nodes": 2,
        "max_time": "24h",
        "slurm": {"mem": "480G", "constraint": "nvlink"},
        "container": {"runtime": "apptainer", "image": "/images/cuda.sif"},
    },
    "cpu": {
        "gpus_per_node": 0,
        "cpus_per_node": 128,
        "max_time": "12h",
        "slurm": {"cpus_per_task": 32, "mem": "64G", "qos": "serial", "options": ["--exclusive"]},
        "env": {"WHERE": "cpu"},
    },
}
ON_CPU = changed(
    ("slurm: {nodes: 1, gpus_per_node: 1, time: 30m}", "slurm: {nodes: 1, partition: cpu, time: 30m}")
)


def cluster(**changes: Any) -> ClusterProfile:
    values = {
        "name": "alps",
        "ssh_conn_id": "slurm_alps",
        "run_root": "/scratch/runs",
        "python": "python3",
        "megatron_lm_dir": "/opt/Megatron-LM",
        "gpu_option": "gres",
        "slurm": {"partition": "gpu", "account": "me", "cpus_per_task": 12},
        "partitions": PARTITIONS,
        "env": {"WHERE": "anywhere"},
    }
    return ClusterProfile(**{**values, **changes})


def directives(stage: str, text: str = ON_CPU) -> tuple[dict[str, str], str]:
    """Return the sbatch options of a stage at the first point, and its whole script."""
    profile = cluster()
    job: Job = next(
        job for job in check_sweep(load_sweep_text(text, "s.yaml"), profile).jobs if job.stage == stage
    )
    script = job_script(job, profile, 1)
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH --")]
    return {name: value.strip("'") for name, _, value in (line.partition("=") for line in lines)}, script


def problems(text: str, **changes: Any) -> list[str]:
    try:
        check_sweep(load_sweep_text(text, "s.yaml"), cluster(**changes))
    except SpecError as error:
        return [f"{problem.line}: {problem.message}" for problem in error.problems]
    return []


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.slow
def test_a_stage_on_another_partition_gets_its_flags_and_none_of_the_first() -> None:
    options, script = directives("pretrain.convert")
    assert {name: options.get(name) for name in ("partition", "mem", "qos", "account", "time")} == {
        "partition": "cpu",
        "mem": "64G",
        "qos": "serial",
        "account": "me",
        "time": "00:30:00",
    }
    assert options["cpus-per-task"] == "32"
    assert not {"gres", "constraint"} & set(options)
    assert "exclusive" in options
    assert "export WHERE=cpu" in script
    assert "apptainer" not in script


def test_the_partition_of_the_profile_gives_its_own() -> None:
    options, script = directives("pretrain")
    assert {name: options[name] for name in ("partition", "mem", "gres", "constraint", "cpus-per-task")} == {
        "partition": "gpu",
        "mem": "480G",
        "gres": "gpu:a100:4",
        "constraint": "nvlink",
        "cpus-per-task": "48",
    }
    assert "/images/cuda.sif" in script
    assert "export WHERE=anywhere" in script


def test_parameters_beside_or_inside_the_name_win() -> None:
    text = ON_CPU.replace(
        "partition: cpu, time: 30m", "partition: cpu, mem: 1G, qos: short, cpus_per_task: 2, time: 30m"
    )
    options, _ = directives("pretrain.convert", text)
    assert (options["mem"], options["qos"], options["cpus-per-task"]) == ("1G", "short", "2")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "gpus_per_node: 4",
            "gpus_per_node: 8",
            "stage pretrain at point lr0.001: partition gpu has 4 GPUs per node, 8 requested",
        ),
        ("nodes: 2", "nodes: 3", "requests 3 nodes; partition gpu allows 2 per job"),
        ("time: 6h", "time: 30h", "requests 1-06:00:00; partition gpu allows 1-00:00:00 per attempt"),
        ("time: 6h", "time: 6h, cpus_per_task: 13", "partition gpu has 48 CPU cores per node, 52 requested"),
        ("partition: cpu", "partition: gpuu", "cluster alps has no partition 'gpuu'"),
        ("partition: cpu", "partition: 'cpu,gpuu'", "cluster alps has no partition 'gpuu'"),
        (
            "partition: cpu",
            "partition: cpu, gpus_per_node: 1",
            "partition cpu has 0 GPUs per node, 1 requested",
        ),
    ],
)
def test_what_no_node_has_is_refused_where_it_stands(old: str, new: str, message: str) -> None:
    text = ON_CPU.replace(old, new)
    found = problems(text)
    assert any(message in problem and problem.startswith(f"{line_of(text, new)}:") for problem in found), (
        found
    )


def test_the_mend_of_a_misspelt_partition() -> None:
    with pytest.raises(SpecError, match="cpu"):
        check_sweep(load_sweep_text(ON_CPU.replace("partition: cpu", "partition: cpus"), "s.yaml"), cluster())


def test_without_a_description_every_partition_may_be_named() -> None:
    assert problems(ON_CPU, partitions={}) == []
    assert problems(TRUNK, slurm={"partition": "anything"}, partitions={}) == []


@pytest.mark.parametrize(
    ("cores", "options", "message"),
    [
        (10, [], ""),
        (11, [], "partition gpu has 48 CPU cores per node, of which Slurm reserves 8, 44 requested"),
        (12, ["-S 0"], ""),
        (12, ["--core-spec=0"], ""),
        (11, ["--core-spec=4"], ""),
        (12, ["--core-spec=4"], "of which Slurm reserves 4, 48 requested"),
        (13, ["-S 0"], "partition gpu has 48 CPU cores per node, 52 requested"),
    ],
)
def test_cores_that_the_site_reserves_on_each_node(cores: int, options: list[str], message: str) -> None:
    gpu = {**PARTITIONS["gpu"], "core_spec": 8, "slurm": {}}
    profile = cluster(partitions={**PARTITIONS, "gpu": gpu})
    text = changed(
        (
            "slurm: {nodes: 2, gpus_per_node: 4, time: 6h}",
            f"slurm: {{nodes: 2, gpus_per_node: 4, time: 6h, cpus_per_task: {cores}, options: {options}}}",
        ),
        text=ON_CPU,
    )
    if not message:
        check_sweep(load_sweep_text(text, "s.yaml"), profile)
        return
    with pytest.raises(SpecError, match=message):
        check_sweep(load_sweep_text(text, "s.yaml"), profile)
