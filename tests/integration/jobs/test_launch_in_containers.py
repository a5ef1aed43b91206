"""Trainings on two nodes, in stand-ins of each container runtime: the environment of each process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from example_specs import MODEL
from patience import deadline_in
from stand_in_runtimes import write_stand_ins

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.slurm.submission.single_job import SubmissionRequest
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.model.launch import CONTAINER_RUNTIMES
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from slurm_cluster import SlurmCluster

ENTRY: Final = """\
import json, os, pathlib
here = pathlib.Path(__file__).parent
(here / f"rank{os.environ['RANK']}.json").write_text(json.dumps(dict(os.environ)))
"""
NODES, PER_NODE = 2, 2
RANKS = range(NODES * PER_NODE)
LAUNCHES = [(runtime, "srun") for runtime in CONTAINER_RUNTIMES.names()] + [("docker", "torchrun")]
"""Torchrun gives the processes their ranks by itself: with one runtime, the strictest."""
ADDRESS: Final = subprocess.run(
    ["hostname", "-I"], capture_output=True, text=True, check=True
).stdout.partition(" ")[0]
"""An address of this machine that its host name does not mean, like that of a site's fast network; may be empty."""
OF_THE_SITE: Final[dict[tuple[str, str], dict[str, str]]] = {
    ("docker", "torchrun"): dict.fromkeys(("master_addr", "local_addr"), "$(hostname -I | cut -d' ' -f1)"),
    ("shifter", "srun"): {"gpu_option": "gpus-per-task"},
    ("podman-hpc", "srun"): {"master_addr": "$(hostname).fast"},
}
Seen = dict[tuple[str, str], list[dict[str, str]]]


def planned(folder: Path, runtime: str, launcher: str, programs: Path) -> tuple[Any, ClusterProfile]:
    """Return the training and the profile that starts it in a container."""
    folder.mkdir()
    (folder / "pretrain_gpt.py").write_text(ENTRY)
    container: dict[str, Any] = {"runtime": runtime, "image": "/images/i", "env": ["NCCL_DEBUG"]}
    if runtime == "ce":
        del container["env"]
    profile = {
        "name": "boxes",
        "ssh_conn_id": "x",
        "run_root": str(folder / "runs"),
        "python": str(local_dir() / "venv-trainer/bin/python") if launcher == "torchrun" else sys.executable,
        "megatron_lm_dir": str(folder),
        "launcher": launcher,
        "container": container,
        "setup": [f'export PATH="{programs}:$PATH"'],
        "env": {"NCCL_DEBUG": "INFO", "OF_THE_PROFILE": "a b"},
        **(OF_THE_SITE.get((runtime, launcher), {}) if ADDRESS else {}),
    }
    spec = {
        "name": "x",
        "point": "p",
        "slurm": {"nodes": NODES, "gpus_per_node": PER_NODE, "time": "5m", "mem": "100M"},
        "megatron": {**MODEL, "save_interval": 10},
        "stages": {"pretrain": {"kind": "train", "megatron": {"train_iters": 10}}},
    }
    cluster = ClusterProfile.model_validate(profile)
    (job,) = check_sweep(load_sweep_text(json.dumps(spec), "s.yaml"), cluster).jobs
    return job, cluster


@pytest.fixture(scope="module")
def seen(cluster: SlurmCluster, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Run all trainings concurrently; return the environments of the processes by runtime and launcher."""
    place = tmp_path_factory.mktemp("boxes")
    programs = write_stand_ins(place / "programs")
    logs, running = {}, []
    for runtime, launcher in LAUNCHES:
        job, profile = planned(place / f"{runtime}-{launcher}", runtime, launcher, programs)
        request = SubmissionRequest(
            attempt=attempt_of(job, 1),
            script=job_script(job, profile, 1),
            job_json={"job": job.name},
            claim_token=f"test-{os.urandom(6).hex()}",
            log_dir=f"{job.run_dir}/logs",
        )
        running.append(str(cluster.submit_patiently(request).job_id))
        logs[running[-1]] = job.log_file(1)
    deadline = deadline_in(120)
    while left := cluster.slurm("squeue", "-h", "-j", ",".join(running), "-o", "%i %T").split("\n"):
        if left == [""]:
            break
        assert time.monotonic() < deadline, left
        time.sleep(0.3)
    found: Seen = {}
    for (runtime, launcher), job_id in zip(LAUNCHES, running, strict=True):
        files = [place / f"{runtime}-{launcher}" / f"rank{rank}.json" for rank in RANKS]
        assert all(file.is_file() for file in files), Path(logs[job_id]).read_text()
        found[runtime, launcher] = [json.loads(file.read_text()) for file in files]
    return found


@pytest.mark.integration
@pytest.mark.parametrize("launch", LAUNCHES, ids="-".join)
def test_each_process_finds_its_rank_the_address_and_its_devices(launch: tuple[str, str], seen: Seen) -> None:
    runtime, _ = launch
    ranks = seen[launch]
    assert [(env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) for env in ranks] == [
        (str(rank), str(rank % PER_NODE), str(len(RANKS))) for rank in RANKS
    ]
    nodes = [env["SLURMD_NODENAME"] for env in ranks]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in ranks}) == 1
    if launch not in OF_THE_SITE:
        assert ranks[0]["MASTER_ADDR"] == socket.gethostname()
    for env in ranks:
        assert env["CUDA_VISIBLE_DEVICES"] == env["ROCR_VISIBLE_DEVICES"]
        assert env["CUDA_VISIBLE_DEVICES"] in ("0,1", "2,3"), (
            "of a node with four, which another job may share"
        )
        assert env["CONTAINED_BY"] in (runtime, runtime.removesuffix("-shared"), "srun")
        assert (env["FROM_IMAGE"], env["OF_THE_PROFILE"]) == ("image", "a b")
        assert env["NCCL_DEBUG"] == ("image" if runtime == "ce" else "INFO")


@pytest.mark.integration
@pytest.mark.skipif(not ADDRESS, reason="the machine has no address but that of its loopback interface")
def test_processes_meet_at_the_addresses_of_the_profile(seen: Seen) -> None:
    """Torchrun does not recognise the addresses as those of the node, so it needs an option for the rendezvous host."""
    assert {env["MASTER_ADDR"] for env in seen["docker", "torchrun"]} == {ADDRESS}
    assert {env["MASTER_ADDR"] for env in seen["podman-hpc", "srun"]} == {f"{socket.gethostname()}.fast"}


@pytest.mark.integration
def test_gpus_per_task_leaves_all_gpus_of_the_node_to_each_process(seen: Seen) -> None:
    for env in seen["shifter", "srun"]:
        assert len(env["CUDA_VISIBLE_DEVICES"].split(",")) == PER_NODE
