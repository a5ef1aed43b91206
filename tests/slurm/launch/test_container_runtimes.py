"""The environment of a command in a container, for the documented behaviour of each runtime."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from stand_in_runtimes import write_stand_ins

from airflow_megatron.spec.model.launch import CONTAINER_RUNTIMES, ContainedJob
from airflow_megatron.spec.model.schema import ContainerSection

if TYPE_CHECKING:
    from pathlib import Path

OWN_PROGRAM = ["apptainer", "singularity", "shifter", "docker", "podman-hpc", "podman-hpc-shared"]
INHERITING = ["apptainer", "singularity", "shifter"]
HOSTILE = ["a b", "$(touch injected)", "`touch injected`", '"; touch injected; "', "$HOME\\", "x\ny", "ü", ""]


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    return write_stand_ins(tmp_path / "bin")


def environment_in(
    bin_folder: Path, runtime: str, job: ContainedJob, given: dict[str, str], **container: Any
) -> dict[str, str]:
    section = ContainerSection.model_validate({"runtime": runtime, "image": "/images/a b", **container})
    words = CONTAINER_RUNTIMES[runtime].words(section, job)
    outside = {"PATH": f"{bin_folder}:/usr/bin:/bin", "SLURM_PROCID": "3", "SLURM_JOB_ID": "7", **given}
    shown = subprocess.run(
        [*words, "env", "-0"], env=outside, cwd=bin_folder, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert not (bin_folder / "injected").exists()
    return dict(line.split("=", 1) for line in shown.stdout.split("\0") if line)


@pytest.mark.parametrize("runtime", OWN_PROGRAM)
def test_ranks_address_and_devices_reach_the_container(runtime: str, bin_folder: Path) -> None:
    given = {
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "20007",
        "CUDA_VISIBLE_DEVICES": "2",
        "ROCR_VISIBLE_DEVICES": "3",
        "OF_THE_PROFILE": "p",
    }
    job = ContainedJob(gpus=True, variables=("OF_THE_PROFILE",))
    seen = environment_in(bin_folder, runtime, job, given)
    assert given.items() <= seen.items()
    assert (seen["SLURM_PROCID"], seen["SLURM_JOB_ID"], seen["FROM_IMAGE"]) == ("3", "7", "image")
    assert seen["CONTAINED_BY"] == runtime.removesuffix("-shared")
    assert "HIP_VISIBLE_DEVICES" not in seen


@pytest.mark.slow
@pytest.mark.parametrize("runtime", OWN_PROGRAM)
def test_variables_of_env_replace_those_of_the_image(runtime: str, bin_folder: Path) -> None:
    given = {"NCCL_DEBUG": "INFO", "LD_LIBRARY_PATH": "/opt/lib"}
    names = ["NCCL_DEBUG", "LD_LIBRARY_PATH", "NOT_SET"]
    seen = environment_in(bin_folder, runtime, ContainedJob(), given, env=names)
    assert given.items() <= seen.items()
    assert "NOT_SET" not in seen


@pytest.mark.parametrize("runtime", INHERITING)
def test_without_env_those_of_the_image_win(runtime: str, bin_folder: Path) -> None:
    seen = environment_in(
        bin_folder, runtime, ContainedJob(variables=("NCCL_DEBUG",)), {"NCCL_DEBUG": "INFO"}
    )
    assert seen["NCCL_DEBUG"] == "image"


@pytest.mark.parametrize("runtime", ["docker", "podman-hpc"])
def test_what_the_profile_sets_wins_where_nothing_else_enters(runtime: str, bin_folder: Path) -> None:
    job = ContainedJob(variables=("NCCL_DEBUG",))
    seen = environment_in(bin_folder, runtime, job, {"NCCL_DEBUG": "INFO", "OF_THE_SHELL": "x"})
    assert seen["NCCL_DEBUG"] == "INFO"
    assert "OF_THE_SHELL" not in seen


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [*OWN_PROGRAM, "apptainer --no-eval"])
def test_values_arrive_unchanged(runtime: str, bin_folder: Path) -> None:
    name, *options = runtime.split()
    given = {f"HOSTILE_{index}": value for index, value in enumerate(HOSTILE)}
    seen = environment_in(bin_folder, name, ContainedJob(), given, env=[*given], options=options)
    assert given.items() <= seen.items()


@pytest.mark.parametrize(
    ("runtime", "options", "gpus", "expected"),
    [
        ("docker", [], True, "--gpus=all"),
        ("docker", [], False, None),
        ("docker", ["--device=/dev/infiniband"], True, "--gpus=all"),
        ("docker", ["--gpus=2"], True, "--gpus=2"),
        ("docker", ["--device=/dev/kfd", "--device=/dev/dri"], True, None),
        ("podman-hpc", ["--nccl"], True, "--gpu"),
        ("podman-hpc", ["--gpu", "--nccl"], True, "--gpu"),
        ("podman-hpc-shared", [], False, None),
    ],
)
def test_a_container_gets_the_gpus_of_a_job_that_has_some(
    runtime: str, options: list[str], gpus: bool, expected: str | None
) -> None:
    section = ContainerSection.model_validate({"runtime": runtime, "image": "i", "options": options})
    words = CONTAINER_RUNTIMES[runtime].words(section, ContainedJob(gpus=gpus))
    assert [word for word in words[3:] if word.startswith("--gpu")] == ([expected] if expected else [])


def test_a_docker_container_belongs_to_the_user_and_names_its_job(tmp_path: Path) -> None:
    (tmp_path / "docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "docker").chmod(0o755)
    section = ContainerSection.model_validate(
        {"runtime": "docker", "image": "i", "binds": ["/data", "/a:/b"]}
    )
    words = CONTAINER_RUNTIMES["docker"].words(section, ContainedJob())
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    shown = subprocess.run([*words, "x"], env=environment, capture_output=True, text=True, check=True).stdout
    options = shown.splitlines()
    assert options[:2] == ["run", "--rm"]
    assert options[-2:] == ["i", "x"]
    assert {"--init", f"--user={os.getuid()}:{os.getgid()}", "--label=slurm.job=7"} <= {*options}
    assert {f"--group-add={group}" for group in (os.getgid(), *os.getgroups())} <= {*options}
    assert {"--volume=/data:/data", "--volume=/a:/b", "--network=host", "--ipc=host"} <= {*options}
