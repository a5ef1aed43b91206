"""Rendered job scripts: bash accepts them, and every value reaches the command as exactly one word."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import yaml
from example_specs import CHAIN, MODEL
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.submission.job_script import render_job_script, template_texts
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job

HOSTILE = [
    "two words",
    "$(touch injected)",
    "`touch injected`",
    "'; touch injected; '",
    '"; touch injected; "',
    "$HOME ${PATH}",
    "a\\",
    "line\nbreak",
    "#not a comment",
    "*",
    "~",
    "!x",
    "&& touch injected",
    "",
    "ü☃",
]
PROFILE = {
    "name": "alps",
    "ssh_conn_id": "slurm_alps",
    "run_root": "/scratch/runs",
    "python": "/opt/venv/bin/python",
    "megatron_lm_dir": "/opt/Megatron-LM",
}
APPTAINER = {
    "runtime": "apptainer",
    "image": "/images/a b.sif",
    "binds": ["/data:/data", "/scratch"],
    "options": ["--rocm"],
}
PYXIS = {"runtime": "pyxis", "image": "nvcr.io#nvidia/pytorch:25.08", "binds": ["/data:/data", "/scratch"]}
CE = {"runtime": "ce", "image": "/users/me/.edf/megatron.toml"}
SHIFTER = {"runtime": "shifter", "image": "docker:nersc/pytorch:25.02", "binds": ["/data:/data", "/scratch"]}
DOCKER = {
    "runtime": "docker",
    "image": "nvcr.io/nvidia/pytorch:25.08-py3",
    "binds": ["/data:/data", "/scratch"],
}
PODMAN_HPC = {"runtime": "podman-hpc", "image": "nersc/pytorch:25.02", "options": ["--nccl"]}
NODES = {"nodes": 2, "gpus_per_node": 4}
SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one process": ({}, {}),
    "torchrun on one node": ({}, {"gpus_per_node": 4}),
    "torchrun on two nodes": ({}, NODES),
    "srun": ({"launcher": "srun"}, NODES),
    "srun, one process": ({"launcher": "srun"}, {}),
    "apptainer, one process": ({"container": APPTAINER}, {}),
    "apptainer, torchrun": ({"container": APPTAINER}, {"gpus_per_node": 4}),
    "apptainer, torchrun on two nodes": ({"container": APPTAINER}, NODES),
    "apptainer, srun": ({"container": APPTAINER, "launcher": "srun"}, NODES),
    "pyxis, one process": ({"container": PYXIS}, {}),
    "pyxis, torchrun": ({"container": PYXIS}, {"gpus_per_node": 4}),
    "pyxis, srun": ({"container": PYXIS, "launcher": "srun"}, NODES),
    "ce, one process": ({"container": CE}, {}),
    "ce, torchrun on two nodes": ({"container": CE}, NODES),
    "ce, srun": ({"container": CE, "launcher": "srun"}, NODES),
    "shifter, one process": ({"container": {**SHIFTER, "options": ["--module=gpu"]}}, {}),
    "shifter, srun": ({"container": SHIFTER, "launcher": "srun"}, NODES),
    "docker, one process": ({"container": DOCKER}, {}),
    "docker, torchrun on two nodes": ({"container": DOCKER}, NODES),
    "podman-hpc, torchrun": ({"container": PODMAN_HPC}, {"gpus_per_node": 4}),
    "podman-hpc-shared, srun": (
        {"container": {**PODMAN_HPC, "runtime": "podman-hpc-shared"}, "launcher": "srun"},
        NODES,
    ),
    "modules and setup": ({"modules": ["cuda/12.4", "a b"], "setup": ["ulimit -n 4096", "echo $HOME"]}, {}),
}
"""Cluster profile and resources of everything that a script can look like."""


def jobs_of(text: str, cluster: ClusterProfile) -> dict[str, Job]:
    return {job.stage: job for job in check_sweep(load_sweep_text(text, "s.yaml"), cluster).jobs}


def train_spec(**sections: Any) -> str:
    return json.dumps(
        {
            "name": "x",
            "point": "p",
            "stages": {"pretrain": {"kind": "train", "megatron": {"train_iters": 10}}},
            **sections,
            "megatron": {**MODEL, "save_interval": 10, **sections.get("megatron", {})},
        }
    )


def syntax_error(script: str) -> str:
    return subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False).stderr


def directives(script: str) -> list[str]:
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash"
    found = []
    for line in lines[1:]:
        if not line.startswith("#SBATCH "):
            break
        found.append(line.removeprefix("#SBATCH "))
    return found


class Sandbox:
    """Runs rendered scripts for real, with commands on the PATH that write down how they are called.

    What it would start (``python``, ``srun``, ``apptainer``, …) only records; the run directory is real. Scripts also
    start commands in the background, so each record is written under a lock.
    """

    RECORD = """#!/bin/bash
exec 9>>"$CALLS"
flock 9
printf '%s\\0' "$0" "$@" >&9
printf '\\0' >&9
exit 0
"""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin, self.calls_file = folder, folder / "bin", folder / "calls"
        self.bin.mkdir()
        for name in (
            "python",
            "srun",
            "apptainer",
            "singularity",
            "shifter",
            "docker",
            "podman-hpc",
            "module",
        ):
            (self.bin / name).write_text(self.RECORD)
            (self.bin / name).chmod(0o755)

    def cluster(self, **more: Any) -> ClusterProfile:
        return ClusterProfile.model_validate(
            {**PROFILE, "run_root": str(self.folder / "runs"), "python": str(self.bin / "python"), **more}
        )

    def run(self, script: str, job: Job, **env: str) -> list[list[str]]:
        """Run a script as Slurm would, and return the words of each recorded call.

        Starting a container to list its packages is none of the job's own.
        """
        attempt = f"{job.stage_dir}/1"
        subprocess.run(["mkdir", "-p", attempt], check=True)
        subprocess.run(["sh", "-c", 'echo 7 >"$0/jobid"', attempt], check=True)
        self.calls_file.write_bytes(b"")
        result = subprocess.run(
            ["bash"],
            input=script,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "CALLS": str(self.calls_file),
                "SLURM_JOB_ID": "7",
                "SLURM_JOB_NODELIST": "n[1-2]",
                **env,
            },
        )
        assert result.returncode == 0, result.stderr
        assert not (self.folder / "injected").exists()
        with self.calls_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            calls = file.read().decode().split("\0\0")
        own = [call for call in calls if call and "am_packages_here" not in call]
        return [call.removeprefix(f"{self.bin}/").split("\0") for call in own]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("gpu_option", ["gpus-per-node", "gres", "gpus-per-task", "none"])
@pytest.mark.parametrize("shape", SHAPES)
def test_bash_reads_every_shape(shape: str, gpu_option: str) -> None:
    profile, slurm = SHAPES[shape]
    cluster = ClusterProfile.model_validate({**PROFILE, **profile, "gpu_option": gpu_option})
    (job,) = jobs_of(train_spec(slurm={**slurm, "time": "1h"}), cluster).values()
    script = job_script(job, cluster, 1)
    assert syntax_error(script) == ""
    asked = [line for line in directives(script) if line.startswith(("--gpus", "--gres"))]
    each = 1 if profile.get("launcher") == "srun" else 4
    wanted = {
        "gpus-per-node": ["--gpus-per-node=4"],
        "gres": ["--gres=gpu:4"],
        "gpus-per-task": [f"--gpus-per-task={each}"],
        "none": [],
    }[gpu_option]
    assert asked == (wanted if "gpus_per_node" in slurm else [])


@pytest.mark.slow
def test_bash_reads_every_stage_of_a_chain(cluster: ClusterProfile) -> None:
    jobs = jobs_of(CHAIN, cluster)
    assert len(jobs) == 10
    assert (
        "".join(syntax_error(job_script(job, cluster, 3, exclude=["n1", "n2"])) for job in jobs.values())
        == ""
    )


@pytest.mark.parametrize("script", [None, '#!/bin/bash\n#SBATCH --time=5\npython "$(nice)"\n'])
@pytest.mark.parametrize("nice", [0, 19])
def test_a_job_has_the_nice_value_of_its_profile(nice: int, script: str | None, sandbox: Sandbox) -> None:
    cluster = sandbox.cluster(nice=nice)
    stages = {"work": {"kind": "command", "command": ["bash", "-c", 'python "$(nice)"']}}
    (job,) = jobs_of(train_spec(stages=stages), cluster).values()
    rendered = job_script(replace(job, script=script), cluster, 1)
    assert syntax_error(rendered) == ""
    assert sandbox.run(rendered, job) == [["python", str(nice or os.nice(0))]]


class TestLaunch:
    """The commands that are really started, as recorded by the commands."""

    @pytest.mark.slow
    @pytest.mark.parametrize("shape", SHAPES)
    def test_the_trainer_gets_its_words(self, shape: str, sandbox: Sandbox) -> None:
        profile, slurm = SHAPES[shape]
        cluster = sandbox.cluster(**profile)
        (job,) = jobs_of(train_spec(slurm=slurm), cluster).values()
        calls = sandbox.run(job_script(job, cluster, 1), job)
        assert len([call for call in calls if call[0] != "module"]) == 1
        started = calls[-1]
        script, *arguments = job.command[1:]
        end = started[-len(arguments) :]
        assert end == arguments
        assert started[-len(arguments) - 1] == script

    @pytest.mark.slow
    @pytest.mark.parametrize("text", ["1.25e-3", *HOSTILE[:6]])
    def test_a_learning_rate_that_was_searched_for(self, text: str, sandbox: Sandbox) -> None:
        stages = {
            "search": {"kind": "lr_finder", "megatron": {"train_iters": 40}},
            "pretrain": {
                "kind": "train",
                "parent": "search",
                "megatron": {
                    "train_iters": 10,
                    "lr": "{{ file_value(stages.search.run_dir ~ '/lr_finder/suggested_lr') }}",
                },
            },
        }
        jobs = jobs_of(train_spec(stages=stages), cluster := sandbox.cluster())
        search, pretrain = jobs["search"], jobs["pretrain"]
        (written,) = search.outputs
        (started,) = sandbox.run(job_script(search, cluster, 1), search)
        assert "--lr-finder" in started
        assert (
            started[started.index("--save") + 1]
            == search.run_dir
            == written.removesuffix("/lr_finder/suggested_lr")
        )
        assert "--load" not in started
        Path(written).parent.mkdir(parents=True)
        Path(written).write_text(f"{text}\n")
        (started,) = sandbox.run(job_script(pretrain, cluster, 1), pretrain)
        assert started[started.index("--lr") + 1] == text

    @pytest.mark.slow
    def test_weights_of_a_blend_that_the_preparations_counted(self, sandbox: Sandbox) -> None:
        data = {name: f"{{{{ stages.{name}.run_dir }}}}/data" for name in ("wiki", "code")}
        stages = {
            "wiki": {"kind": "command", "scope": "sweep", "command": ["prepare"]},
            "code": {"kind": "command", "scope": "sweep", "parent": "wiki", "command": ["prepare"]},
            "pretrain": {
                "kind": "train",
                "parent": "code",
                "megatron": {
                    **{"train_iters": 10, "mock_data": False},
                    **{"valid_data_path": ["/v"], "test_data_path": ["/t"]},
                    "train_data_path": [
                        word
                        for name, folder in data.items()
                        for word in (
                            f"{{{{ file_value(stages.{name}.run_dir ~ '/data/train_tokens') }}}}",
                            f"{folder}/train_text_document",
                        )
                    ],
                },
            },
        }
        jobs = jobs_of(train_spec(stages=stages), cluster := sandbox.cluster())
        blend = []
        for name, tokens in (("wiki", "3000000"), ("code", "1000000")):
            folder = Path(jobs[name].run_dir) / "data"
            folder.mkdir(parents=True)
            (folder / "train_tokens").write_text(f"{tokens}\n")
            blend += [tokens, f"{folder}/train_text_document"]
        (started,) = sandbox.run(job_script(jobs["pretrain"], cluster, 1), jobs["pretrain"])
        first = started.index("--train-data-path") + 1
        assert started[first : first + 4] == blend

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("shape", "words"),
        [
            ("one process", ["python"]),
            (
                "torchrun on one node",
                ["python", "-m", "torch.distributed.run", "--nproc-per-node=4", "--standalone"],
            ),
            (
                "torchrun on two nodes",
                [
                    "srun",
                    "--kill-on-bad-exit=1",
                    "{bin}/python",
                    "-m",
                    "torch.distributed.run",
                    "--nproc-per-node=4",
                    "--nnodes=2",
                    "--rdzv-backend=c10d",
                    "--rdzv-id=7",
                    "--rdzv-endpoint={host}:20007",
                ],
            ),
            (
                "apptainer, one process",
                [
                    "apptainer",
                    "exec",
                    "--rocm",
                    "--bind",
                    "/data:/data",
                    "--bind",
                    "/scratch",
                    "/images/a b.sif",
                    "{bin}/python",
                ],
            ),
            (
                "pyxis, one process",
                [
                    "srun",
                    "--kill-on-bad-exit=1",
                    "--container-image=nvcr.io#nvidia/pytorch:25.08",
                    "--container-mounts=/data:/data,/scratch",
                    "{bin}/python",
                ],
            ),
            (
                "ce, torchrun on two nodes",
                [
                    "srun",
                    "--kill-on-bad-exit=1",
                    "--environment=/users/me/.edf/megatron.toml",
                    "{bin}/python",
                    "-m",
                    "torch.distributed.run",
                    "--nproc-per-node=4",
                    "--nnodes=2",
                    "--rdzv-backend=c10d",
                    "--rdzv-id=7",
                    "--rdzv-endpoint={host}:20007",
                ],
            ),
            (
                "shifter, one process",
                [
                    "shifter",
                    "--image=docker:nersc/pytorch:25.02",
                    "--module=gpu",
                    "--volume=/data:/data",
                    "--volume=/scratch:/scratch",
                    "{bin}/python",
                ],
            ),
        ],
    )
    def test_launchers(self, shape: str, words: list[str], sandbox: Sandbox) -> None:
        profile, slurm = SHAPES[shape]
        cluster = sandbox.cluster(**profile)
        (job,) = jobs_of(train_spec(slurm=slurm), cluster).values()
        started = sandbox.run(job_script(job, cluster, 1), job)[-1]
        host = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
        expected = [word.format(bin=sandbox.bin, host=host) for word in words]
        assert started[: len(words)] == expected
        assert started[len(words) :] == list(job.command[1:])

    def test_srun_starts_a_process_a_gpu_with_its_rank(self, sandbox: Sandbox) -> None:
        (sandbox.bin / "srun").write_text(
            "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n"
            'SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_NTASKS=8 exec "$@"\n'
        )
        (sandbox.bin / "python").write_text(
            '#!/bin/bash\nprintf "%s\\0" "$RANK" "$LOCAL_RANK" "$WORLD_SIZE" "$MASTER_PORT" "$@" >>"$CALLS"\n'
        )
        cluster = sandbox.cluster(launcher="srun")
        (job,) = jobs_of(train_spec(slurm=NODES), cluster).values()
        script = job_script(job, cluster, 1)
        (seen,) = sandbox.run(script, job)
        assert seen[:4] == ["5", "1", "8", "20007"]
        assert seen[4:-1] == list(job.command[1:])
        assert "--ntasks-per-node=4" in directives(script)

    @pytest.mark.slow
    def test_a_branch_starts_from_its_parent_only_until_it_has_a_checkpoint(self, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster()
        jobs = jobs_of(CHAIN, cluster)
        job = jobs["cooldown_300k"]
        start = ["--load", f"{jobs['pretrain'].run_dir}/checkpoints", "--ckpt-step", "130"]
        script = job_script(job, cluster, 1)
        assert sandbox.run(script, job)[-1] == ["python", *job.command[1:], *start]
        tracker = sandbox.folder / job.checkpoint_dir / "latest_checkpointed_iteration.txt"
        tracker.parent.mkdir(parents=True)
        tracker.write_text("140\n")
        requeued = sandbox.run(script, job, SLURM_RESTART_COUNT="1")
        assert requeued[-1] == ["python", *job.command[1:]]


class TestNoInjection:
    @pytest.mark.slow
    def test_arguments_and_environment(self, sandbox: Sandbox) -> None:
        (sandbox.bin / "python").write_text(
            '#!/bin/bash\nprintf "%s\\0" "$@" >>"$CALLS"\nenv -0 | grep -z "^HOSTILE_" >>"$CALLS"\n'
        )
        env = {f"HOSTILE_{index:02}": value for index, value in enumerate(HOSTILE)}
        spec = json.dumps(
            {
                "name": "x",
                "point": "p",
                "env": {**env, "HOSTILE_99": "{{ word }}"},
                "params": {"word": "$(touch injected) 'x'"},
                "stages": {
                    "run": {"kind": "command", "command": ["{{ python }}", *HOSTILE, "{{ word }}"]},
                },
            }
        )
        cluster = sandbox.cluster(env={"HOSTILE_CLUSTER": "$(touch injected)"})
        job = jobs_of(spec, cluster)["run"]
        script = job_script(job, cluster, 1)
        assert syntax_error(script) == ""
        sandbox.run(script, job)
        seen = sandbox.calls_file.read_bytes().decode().split("\0")[:-1]
        words = [*HOSTILE, "$(touch injected) 'x'"]
        assert seen[: len(words)] == words
        assert dict(item.split("=", 1) for item in seen[len(words) :]) == {
            **env,
            "HOSTILE_99": "$(touch injected) 'x'",
            "HOSTILE_CLUSTER": "$(touch injected)",
        }

    @pytest.mark.slow
    @pytest.mark.parametrize("value", [value for value in HOSTILE if value], ids=repr)
    def test_megatron_arguments(self, value: str, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster()
        own = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": value}
        data = {"mock_data": False, "train_data_path": ["0.5", value], "valid_data_path": ["/v"]}
        spec = train_spec(megatron={"train_iters": 10, **own, **data, "test_data_path": ["/t"]})
        (job,) = jobs_of(spec, cluster).values()
        started = sandbox.run(job_script(job, cluster, 1), job)[-1]
        assert started[started.index("--tokenizer-model") + 1] == value
        place = started.index("--train-data-path")
        assert started[place + 1 : place + 3] == ["0.5", value]

    @pytest.mark.slow
    @given(
        st.lists(
            st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"], exclude_characters="\0")),
            min_size=1,
            max_size=6,
        )
    )
    def test_any_words(self, words: list[str]) -> None:
        """The line that starts the command, given to bash, is the command."""
        cluster = ClusterProfile.model_validate(PROFILE)
        params = {f"v{index}": word for index, word in enumerate(words)}
        raw = [word if "{" not in word else f"{{{{ {json.dumps(word)} }}}}" for word in params.values()]
        spec = {"name": "x", "point": "p", "stages": {"run": {"kind": "command", "command": ["echo", *raw]}}}
        job = jobs_of(json.dumps(spec), cluster)["run"]
        script = job_script(job, cluster, 1)
        run = script[script.rindex("\nam_run ") :]
        run = run[: run.rindex("am_status=$?")]
        shown = subprocess.run(
            ["bash", "-c", f'am_run() {{ printf "%s\\0" "$@"; }}\n{run}'], capture_output=True, check=True
        ).stdout
        assert shown.decode() == "".join(f"{word}\0" for word in ["echo", *words])

    def test_percent_signs_in_directories(self, sandbox: Sandbox) -> None:
        """Slurm replaces %j and others in --output; a doubled sign is a literal one."""
        cluster = sandbox.cluster(run_root=str(sandbox.folder / "100%j dir"))
        (job,) = jobs_of(train_spec(), cluster).values()
        script = job_script(job, cluster, 1)
        (output,) = [line for line in directives(script) if line.startswith("--output=")]
        assert "100%%j dir" in output
        (chdir,) = [line for line in directives(script) if line.startswith("--chdir=")]
        assert "100%j dir" in chdir
        started = sandbox.run(script, job)[-1]
        assert started[started.index("--save") + 1] == job.checkpoint_dir


class TestDirectives:
    def test_all_resources(self, cluster: ClusterProfile) -> None:
        slurm = {
            "nodes": 2,
            "gpus_per_node": 4,
            "cpus_per_task": 8,
            "mem": "64G",
            "time": "1-02:00:00",
            "partition": "gpu",
            "account": "a1",
            "qos": "high",
            "constraint": "a100|h100",
            "reservation": "r",
            "exclude": "n9",
            "options": ["--requeue", "--comment='two words'"],
        }
        (job,) = jobs_of(train_spec(slurm=slurm), cluster).values()
        asked = directives(job_script(job, cluster, 1, exclude=["n1"]))
        assert asked == [
            asked[0],
            "--output=/scratch/runs/x/p/logs/pretrain-1.out",
            "--open-mode=append",
            "--chdir=/scratch/runs/x/p",
            "--nodes=2",
            "--ntasks-per-node=1",
            "--cpus-per-task=32",
            "--gpus-per-node=4",
            "--time=1-02:00:00",
            "--signal=TERM@120",
            "--mem=64G",
            "--partition=gpu",
            "--account=a1",
            "--qos=high",
            "--constraint='a100|h100'",
            "--reservation=r",
            "--exclude=n9,n1",
            "--requeue",
            "--comment='two words'",
        ]
        assert asked[0].startswith("--job-name=x.p.pretrain.a1.")

    @pytest.mark.parametrize(
        ("profile", "slurm", "signal"),
        [
            ({}, {"time": "1h"}, "B:TERM@120"),
            ({}, {"time": "4m"}, "B:TERM@60"),
            ({}, {"time": "1h", "signal_before": "10m"}, "B:TERM@600"),
            ({}, {"time": "1h", **NODES}, "TERM@120"),
            ({"launcher": "srun"}, {"time": "1h"}, "TERM@120"),
        ],
    )
    def test_the_warning_before_the_walltime_reaches_the_trainer(
        self, profile: dict[str, Any], slurm: dict[str, Any], signal: str
    ) -> None:
        cluster = ClusterProfile.model_validate({**PROFILE, **profile})
        (job,) = jobs_of(train_spec(slurm=slurm), cluster).values()
        assert f"--signal={signal}" in directives(job_script(job, cluster, 1))

    def test_two_checkouts_of_one_sweep_have_jobs_of_different_names(self) -> None:
        names = set()
        for root in ("/a", "/b"):
            cluster = ClusterProfile.model_validate({**PROFILE, "run_root": root})
            (job,) = jobs_of(train_spec(), cluster).values()
            names |= {directives(job_script(job, cluster, number))[0] for number in (1, 2)}
        assert len(names) == 4


class TestUpstream:
    """The trainer ``megatron_lm``: upstream's script, found and started according to the profile."""

    SPEC = train_spec(
        trainer="megatron_lm",
        release="core_v0.19.0",
        megatron={
            **{"bf16": True, "mock_data": False, "train_iters": 10},
            "data_path": ["0.3", "/data/a_text_document", "0.7", "/data/b b_text_document"],
            **{"wandb_project": "our project", "wandb_exp_name": "{{ point }}", "exit_duration_in_mins": 50},
        },
        slurm={"time": "1h"},
    )
    TRAINER: ClassVar[dict[str, Any]] = {
        "checkout": {"core_v0.19.0": "/opt/0.19", "core_v0.16.1": "/opt/0.16"},
        "env": {"NCCL_SOCKET_IFNAME": "hsn0,hsn1", "RCCL_MSCCL_ENABLE": 0},
    }

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("device", "words"),
        [
            ("cuda", ["/opt/upstream_index_cache.py", "/opt/0.19/pretrain_gpt.py"]),
            (
                "cpu",
                ["/opt/upstream_on_cpu.py", "/opt/upstream_index_cache.py", "/opt/0.19/pretrain_gpt.py"],
            ),
        ],
    )
    def test_it_gets_its_words(self, device: str, words: list[str], sandbox: Sandbox) -> None:
        (sandbox.bin / "python").write_text(
            '#!/bin/bash\nprintf "%s\\0" "$MASTER_PORT" "$NCCL_SOCKET_IFNAME" "$RCCL_MSCCL_ENABLE" "$@" >>"$CALLS"\n'
        )
        cluster = sandbox.cluster(
            trainers={"megatron_lm": {**self.TRAINER, "device": device}}, megatron_lm_dir="/opt"
        )
        (job,) = jobs_of(self.SPEC, cluster).values()
        script = job_script(job, cluster, 1)
        (started,) = sandbox.run(script, job)
        # it needs a rendezvous address even with one process
        assert started[:3] == ["20007", "hsn0,hsn1", "0"]
        assert started[3 : 3 + len(words)] == words
        given = dict.fromkeys(started)
        assert {"--tensorboard-dir", "--exit-signal-handler", "--save", "--load"} <= given.keys()
        for flag, values in {
            "--data-path": ["0.3", "/data/a_text_document", "0.7", "/data/b b_text_document"],
            "--wandb-project": ["our project"],
            "--wandb-exp-name": ["p"],
            "--exit-duration-in-mins": ["50"],
        }.items():
            place = started.index(flag) + 1
            assert started[place : place + len(values)] == values
        assert "--signal=B:TERM@120" in directives(script)

    def test_the_folder_of_the_progress_log_exists_before_the_training(self, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster(trainers={"megatron_lm": self.TRAINER}, megatron_lm_dir="/opt")
        (job,) = jobs_of(self.SPEC, cluster).values()
        assert "mkdir -p" not in job_script(job, cluster, 1).partition("command=(")[2]
        spec = json.loads(self.SPEC)
        spec["megatron"]["log_progress"] = True
        (job,) = jobs_of(json.dumps(spec), cluster).values()
        sandbox.run(job_script(job, cluster, 1), job)
        assert Path(job.checkpoint_dir).is_dir()

    def test_a_release_that_the_cluster_lacks(self, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster(trainers={"megatron_lm": self.TRAINER})
        with pytest.raises(SpecError, match=r"has no checkout of Megatron-LM core_v0\.18\.2; set trainers"):
            jobs_of(self.SPEC.replace("core_v0.19.0", "core_v0.18.2"), cluster)


class TestBenchmarkOfUpstream:
    SPEC = json.dumps(
        {
            "name": "s",
            "point": "p",
            "trainer": "megatron_lm",
            "release": "core_v0.16.1",
            "megatron": MODEL,
            "benchmark": {"iterations": 20},
        }
    )
    PROFILE = ClusterProfile.model_validate(
        {**PROFILE, "trainers": {"megatron_lm": {"checkout": "/opt/megatron"}}}
    )

    def words(self, **megatron: Any) -> list[str]:
        spec = json.loads(self.SPEC)
        spec["megatron"] |= megatron
        (job,) = jobs_of(json.dumps(spec), self.PROFILE).values()
        return list(job.command)

    def test_it_names_an_interval_of_validations(self) -> None:
        """From core_v0.16 on upstream divides by it before it sees that there is no validation."""
        words = self.words()
        assert words[words.index("--eval-interval") + 1] == "20"
        assert words[words.index("--eval-iters") + 1] == "0"
        words = self.words(eval_interval=7, eval_iters=2)
        assert words[words.index("--eval-interval") + 1] == "7"
        assert words[words.index("--eval-iters") + 1] == "2"

    def test_weights_and_biases_get_the_tensorboard_that_they_are_fed_from(self) -> None:
        assert "--tensorboard-dir" not in self.words()
        words = self.words(wandb_project="p", wandb_exp_name="e")
        assert words[words.index("--tensorboard-dir") + 1] == "/scratch/runs/s/p/benchmark/tensorboard"
        assert words[words.index("--wandb-save-dir") + 1] == "/scratch/runs/s/p/benchmark/wandb"

    def test_a_run_of_weights_and_biases_has_a_name(self) -> None:
        """Upstream ends without one."""
        words = self.words(wandb_project="p")
        assert words[words.index("--wandb-exp-name") + 1] == "s.p.benchmark"
        words = self.words(tensorboard_dir="/tb")
        assert words[words.index("--tensorboard-dir") + 1] == "/tb"


NSYS = ["nsys", "profile", "-o", "{{ run_dir }}/trace of %q{RANK}"]


class TestWrapper:
    @pytest.mark.slow
    @pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "modules and setup"])
    def test_it_stands_before_the_training(self, shape: str, sandbox: Sandbox) -> None:
        profile, slurm = SHAPES[shape]
        cluster = sandbox.cluster(**profile)
        (job,) = jobs_of(train_spec(slurm=slurm, wrapper=NSYS), cluster).values()
        for name in ("nsys",):
            (sandbox.bin / name).write_text(sandbox.RECORD)
            (sandbox.bin / name).chmod(0o755)
        started = sandbox.run(job_script(job, cluster, 1), job)[-1]
        place = started.index("nsys")
        words = ["nsys", "profile", "-o", f"{job.run_dir}/trace of %q{{RANK}}", cluster.python]
        assert started[place : place + 5] == words
        assert started[place + 5] == "/opt/Megatron-LM/pretrain_gpt.py"
        assert ("--no-python" in started[:place]) == ("torch.distributed.run" in started)

    @pytest.mark.parametrize(
        ("ranks", "rank", "wrapped"),
        [
            ([0], "0", True),
            ([0], "1", False),
            ([1, 12], "12", True),
            ([1, 12], "2", False),
            ([0], None, True),
        ],
    )
    def test_on_chosen_ranks(
        self, ranks: list[int], rank: str | None, wrapped: bool, sandbox: Sandbox
    ) -> None:
        """torchrun and srun run the words that follow on each rank; here they run once, as one of them."""
        cluster = sandbox.cluster()
        spec = train_spec(wrapper={"command": NSYS, "ranks": ranks})
        (job,) = jobs_of(spec, cluster).values()
        (sandbox.bin / "nsys").write_text(sandbox.RECORD)
        (sandbox.bin / "nsys").chmod(0o755)
        (started,) = sandbox.run(job_script(job, cluster, 1), job, **({"RANK": rank} if rank else {}))
        assert started[0] == ("nsys" if wrapped else "python")
        assert ("profile" in started) == wrapped
        assert "/opt/Megatron-LM/pretrain_gpt.py" in started

    def test_a_job_without_one_is_written_as_before(self, sandbox: Sandbox) -> None:
        (job,) = jobs_of(train_spec(), sandbox.cluster()).values()
        assert not {"wrapper", "wrapped_ranks", "monitor"} & job.to_json().keys()
        (wrapped,) = jobs_of(train_spec(wrapper={"command": NSYS, "ranks": [1]}), sandbox.cluster()).values()
        assert type(job).from_json(json.loads(json.dumps(wrapped.to_json()))) == wrapped

    @pytest.mark.parametrize("key", ["wrapper", "monitor"])
    def test_only_trainings_have_one(self, key: str) -> None:
        spec = yaml.safe_load(CHAIN)
        spec["stages"]["prepare"][key] = ["numactl"] if key == "wrapper" else True
        with pytest.raises(SpecError, match=f"{key} is for stages of kind train"):
            jobs_of(json.dumps(spec), ClusterProfile.model_validate(PROFILE))


class TestMonitor:
    STAND_IN = """#!/bin/bash
printf '%s ' "$@" >"$ASKED"
echo '0, 1000, 50, 300.0'
sleep 60
"""

    @pytest.mark.slow
    @pytest.mark.parametrize(("own", "asked"), [({}, ""), ({"CUDA_VISIBLE_DEVICES": "2,3"}, " --id=2,3")])
    def test_samples_are_taken_until_the_training_ends(
        self, own: dict[str, str], asked: str, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        smi = sandbox.bin / "nvidia-smi"
        smi.write_text(self.STAND_IN)
        smi.chmod(0o755)
        cluster = sandbox.cluster()
        (job,) = jobs_of(train_spec(monitor={"every": "2s"}), cluster).values()
        attempt = Path(job.stage_dir) / "1"
        (sandbox.bin / "python").write_text(
            f"#!/bin/bash\nuntil [ -s '{attempt}'/gpus/*.csv ]; do sleep 0.05; done\nexit 7\n"
        )
        script = job_script(job, cluster, 1)
        with pytest.raises(AssertionError):  # the training's own exit status is the job's
            sandbox.run(script, job, ASKED=str(tmp_path / "asked"), **own)
        assert json.loads((attempt / "exit.json").read_text())["exit_code"] == 7
        (samples,) = (attempt / "gpus").glob("*.csv")
        assert samples.read_text() == "0, 1000, 50, 300.0\n"
        assert (tmp_path / "asked").read_text().strip() == (
            f"--query-gpu=index,memory.used,utilization.gpu,power.draw --format=csv,noheader,nounits --loop=2{asked}"
        )

    def test_a_machine_without_the_program_trains(self, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster()
        (job,) = jobs_of(train_spec(monitor={"command": "/no/nvidia-smi"}), cluster).values()
        (started,) = sandbox.run(job_script(job, cluster, 1), job)
        assert started[0] == "python"

    def test_on_every_node(self, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster()
        (job,) = jobs_of(train_spec(slurm=NODES, monitor=True), cluster).values()
        script = job_script(job, cluster, 1)
        assert "am_sample_gpus 2 5 nvidia-smi" in script
        assert "srun --overlap --nodes=" in script

    def test_it_is_off_unless_asked_for(self, sandbox: Sandbox) -> None:
        (job,) = jobs_of(train_spec(), sandbox.cluster()).values()
        assert "am_sample_gpus" not in job_script(job, sandbox.cluster(), 1)


@pytest.mark.parametrize(
    ("setup", "env", "address"),
    [
        ([], {}, ""),
        (["export MASTER_ADDR=$(hostname)i MASTER_PORT=4711"], {}, "{host}i:4711"),
        (["MASTER_ADDR=login"], {}, "login:20007"),
        ([], {"MASTER_ADDR": "10.0.0.1"}, "10.0.0.1:20007"),
    ],
)
def test_a_profile_sets_the_rendezvous_address(
    setup: list[str], env: dict[str, str], address: str, sandbox: Sandbox
) -> None:
    cluster = sandbox.cluster(setup=setup, env=env)
    (job,) = jobs_of(train_spec(slurm=NODES), cluster).values()
    script = job_script(job, cluster, 1)
    # variables of the submitting account are not settings of the site
    started = sandbox.run(script, job, MASTER_ADDR="stale", MASTER_PORT="1")[-1]
    host = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
    expected = address.format(host=host) or f"{host}:20007"
    assert f"--rdzv-endpoint={expected}" in started


def test_commands_do_not_read_the_bashrc_of_a_login(sandbox: Sandbox, tmp_path: Path) -> None:
    """Debian's bash reads it when ssh started it, by SSH_CLIENT, which sbatch passes on from the submitting login."""
    (tmp_path / ".bashrc").write_text("export PATH=/elsewhere\n")
    cluster = sandbox.cluster()
    stages = {"look": {"kind": "command", "command": ["env", "SHLVL=0", "bash", "-c", 'echo "$PATH" >path']}}
    (job,) = jobs_of(train_spec(stages=stages), cluster).values()
    login = {
        "HOME": str(tmp_path),
        "SSH_CLIENT": "127.0.0.1 1 2",
        "SSH_CONNECTION": "127.0.0.1 1 127.0.0.1 2",
    }
    sandbox.run(job_script(job, cluster, 1), job, **login)
    assert "/elsewhere" not in (sandbox.folder / "path").read_text()


@pytest.mark.slow
def test_a_profile_gives_the_address_where_processes_meet(sandbox: Sandbox) -> None:
    cluster = sandbox.cluster(master_addr='$(echo "two words" | tr -d " ")i', local_addr="$(hostname)i")
    (job,) = jobs_of(train_spec(slurm=NODES), cluster).values()
    started = sandbox.run(job_script(job, cluster, 1), job)[-1]
    assert "--rdzv-endpoint=twowordsi:20007" in started
    # srun runs a shell on each node for values that are known only there
    place = started.index("bash")
    for node, is_host in (("0", "1"), ("3", "0")):
        words = [word if word != str(sandbox.bin / "python") else "echo" for word in started[place:]]
        expected_message = subprocess.run(
            words, env={"SLURM_NODEID": node, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
        )
        host = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
        head = (
            f"-m torch.distributed.run --rdzv-conf=is_host={is_host} --local-addr={host}i --nproc-per-node=4 "
        )
        assert expected_message.stdout.startswith(head), expected_message
    own = sandbox.cluster(master_addr="profile", setup=["export MASTER_ADDR=setup"])
    (job,) = jobs_of(train_spec(name="y", slurm=NODES), own).values()
    assert "--rdzv-endpoint=setup:20007" in sandbox.run(job_script(job, own, 1), job)[-1]


def test_one_node_has_no_addresses_of_others(sandbox: Sandbox) -> None:
    given = sandbox.cluster(local_addr="x")
    (job,) = jobs_of(train_spec(slurm={"gpus_per_node": 4}), given).values()
    assert job_script(job, given, 1) == job_script(job, sandbox.cluster(), 1)


@pytest.mark.parametrize("text", ["", "two\nlines"])
def test_an_address_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="master_addr"):
        ClusterProfile.model_validate({**PROFILE, "master_addr": text})


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["srun", "torchrun"])
def test_gpus_of_tasks(launcher: str, sandbox: Sandbox) -> None:
    partitions = {"gpu": {"gpus_per_node": 4, "gpu_type": "a100"}}
    cluster = sandbox.cluster(gpu_option="gpus-per-task", launcher=launcher, partitions=partitions)
    (job,) = jobs_of(train_spec(slurm={**NODES, "partition": "gpu"}), cluster).values()
    script = job_script(job, cluster, 1)
    assert f"--gpus-per-task=a100:{1 if launcher == 'srun' else 4}" in directives(script)
    (sandbox.bin / "srun").write_text(
        '#!/bin/bash\nprintf "%s\\0" "${SLURM_GPUS_PER_TASK-none} ${SLURM_TRES_BIND-none}" >>"$CALLS"\n'
    )
    # of Slurm 22.05 and 24.11
    variables = {"SLURM_GPUS_PER_TASK": "1", "SLURM_TRES_BIND": "gres/gpu:per_task:1"}
    ((asked, *_),) = sandbox.run(script, job, **variables)
    assert asked == ("none none" if launcher == "srun" else "1 gres/gpu:per_task:1")
    bound = train_spec(slurm={**NODES, "partition": "gpu", "options": ["--gpu-bind=closest"]})
    (job,) = jobs_of(bound, cluster).values()
    assert "SLURM_TRES_BIND" not in job_script(job, cluster, 1)
    own = train_spec(slurm={**NODES, "partition": "gpu", "options": ["--gpus-per-task=2"]})
    (job,) = jobs_of(own, cluster).values()
    asked = [line for line in directives(job_script(job, cluster, 1)) if line.startswith("--gpus")]
    assert asked == ["--gpus-per-task=2"]


def test_processes_meet_at_a_port_that_nothing_listens_on(sandbox: Sandbox) -> None:
    cluster = sandbox.cluster()
    (job,) = jobs_of(train_spec(slurm=NODES), cluster).values()
    with socket.create_server(("", 20007)):
        started = sandbox.run(job_script(job, cluster, 1), job)[-1]
    (address,) = [word for word in started if word.startswith("--rdzv-endpoint=")]
    assert address.endswith(":20008")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [([], ["--nv"]), (["--nv"], ["--nv"]), (["--nvccli"], ["--nvccli"]), (["--rocm"], ["--rocm"])],
)
def test_a_container_gets_its_gpus_once(options: list[str], words: list[str], sandbox: Sandbox) -> None:
    cluster = sandbox.cluster(container={**APPTAINER, "options": options})
    (job,) = jobs_of(train_spec(), cluster).values()
    (started,) = sandbox.run(job_script(job, cluster, 1), job)
    place = started.index("exec") + 1
    assert started[place : started.index("--bind")] == words


@pytest.mark.slow
def test_variables_of_the_job_replace_those_of_a_pyxis_image(sandbox: Sandbox) -> None:
    cluster = sandbox.cluster(container={**PYXIS, "env": ["NCCL_DEBUG", "PATH"]})
    (job,) = jobs_of(train_spec(), cluster).values()
    (started,) = sandbox.run(job_script(job, cluster, 1), job)
    assert "--container-env=NCCL_DEBUG,PATH" in started


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ({**CE, "binds": ["/data"]}, "ce takes none"),
        ({**CE, "image": "edf/megatron.toml"}, "ce cannot start it"),
        ({**CE, "env": ["A"]}, "ce takes none"),
        ({**PYXIS, "env": ["A B"]}, "env"),
    ],
)
def test_a_container_that_its_runtime_cannot_run_is_refused(container: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClusterProfile.model_validate({**PROFILE, "container": container})


@pytest.mark.slow
def test_directories_of_another_runtime_do_not_reach_the_container_engine(sandbox: Sandbox) -> None:
    cluster = sandbox.cluster(container=APPTAINER)
    (job,) = jobs_of(train_spec(container=CE), cluster).values()
    (started,) = sandbox.run(job_script(job, cluster, 1), job)
    assert started[:3] == ["srun", "--kill-on-bad-exit=1", "--environment=/users/me/.edf/megatron.toml"]
    assert started[3] == str(sandbox.bin / "python")


@pytest.mark.slow
def test_variables_of_a_job_reach_a_docker_container_by_name(sandbox: Sandbox) -> None:
    cluster = sandbox.cluster(
        container={**DOCKER, "env": ["OF_SETUP"]},
        env={"OF_PROFILE": "1"},
        secrets={"HF_TOKEN": {"file": "/x"}},
        setup=["export OF_SETUP=1", "am_secret() { export HF_TOKEN=hidden; }"],
    )
    (job,) = jobs_of(train_spec(env={"OF_SPEC": "a value"}), cluster).values()
    script = job_script(job, cluster, 1).replace(
        "am_secret HF_TOKEN", "HF_TOKEN=hidden; export HF_TOKEN; true"
    )
    (started,) = sandbox.run(script, job, OF_LOGIN="1")
    names = {word.removeprefix("--env=") for word in started if word.startswith("--env=")}
    assert {"OF_PROFILE", "OF_SPEC", "OF_SETUP", "HF_TOKEN", "MASTER_ADDR", "SLURM_JOB_ID"} <= names
    assert "OF_LOGIN" not in names
    assert not [word for word in started if word == "hidden" or "a value" in word]
    assert started[started.index(DOCKER["image"]) + 1] == str(sandbox.bin / "python")
    assert not [word for word in started if word.startswith("--gpus")]


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "cores"), [("torchrun", 48), ("srun", 12)])
def test_srun_gets_the_cores_that_sbatch_asked_for(launcher: str, cores: int, sandbox: Sandbox) -> None:
    """Slurm 22.05 and later do not pass them on."""
    cluster = sandbox.cluster(launcher=launcher, container={**APPTAINER, "options": []})
    (job,) = jobs_of(train_spec(slurm={**NODES, "cpus_per_task": 12}), cluster).values()
    script = job_script(job, cluster, 1)
    started = sandbox.run(script, job)[-1]
    assert f"--cpus-per-task={cores}" in directives(script)
    assert started[:4] == ["srun", "--kill-on-bad-exit=1", f"--cpus-per-task={cores}", "apptainer"]
    assert started[4:6] == ["exec", "--nv"]


def test_a_template_that_was_edited_is_read_again(tmp_path: Path) -> None:
    cluster = ClusterProfile.model_validate(PROFILE)
    (job,) = jobs_of(train_spec(), cluster).values()
    template = tmp_path / "train.sbatch.j2"
    for seconds, text in enumerate(("{{ number }}\n", "{{ job.name }}\n"), 1):
        template.write_text(text)
        os.utime(template, (seconds, seconds))
        assert render_job_script(job, cluster, seconds, tmp_path) == (
            "1\n" if seconds == 1 else f"{job.name}\n"
        )


def test_a_folder_of_templates_holds_only_ones_own(tmp_path: Path) -> None:
    """The others come from the package, also as bases of the project's templates, and are pinned with them."""
    cluster = ClusterProfile.model_validate(PROFILE)
    (job,) = jobs_of(train_spec(), cluster).values()
    (tmp_path / "ours.sbatch.j2").write_text(
        '{% extends "train.sbatch.j2" %}{% block run %}echo ours\n{% endblock %}'
    )
    assert "echo ours" in render_job_script(replace(job, template="ours.sbatch.j2"), cluster, 1, tmp_path)
    assert "am_run" in render_job_script(job, cluster, 1, tmp_path)
    assert template_texts(tmp_path, ["ours.sbatch.j2"]).keys() == {
        "ours.sbatch.j2",
        "train.sbatch.j2",
        "job.sbatch.j2",
    }


class TestContainerOfASpec:
    OWN: ClassVar[dict[str, Any]] = {
        "runtime": "apptainer",
        "image": "/own/{{ tag }} x.sif",
        "binds": ["/own", "/scratch"],
    }

    @pytest.mark.slow
    def test_it_stands_in_place_of_the_profiles(self, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster(container=APPTAINER)
        (job,) = jobs_of(train_spec(container=self.OWN, params={"tag": "a"}), cluster).values()
        (started,) = sandbox.run(job_script(job, cluster, 1), job)
        place = started.index("exec")
        binds = ["--bind", "/data:/data", "--bind", "/scratch", "--bind", "/own"]
        assert started[place - 1 : place + 9] == ["apptainer", "exec", "--rocm", *binds, "/own/a x.sif"]

    @pytest.mark.slow
    def test_options_are_for_one_runtime(self, sandbox: Sandbox) -> None:
        cluster = sandbox.cluster(container=APPTAINER)
        (job,) = jobs_of(
            train_spec(container={**self.OWN, "runtime": "singularity"}, params={"tag": "a"}), cluster
        ).values()
        (started,) = sandbox.run(job_script(job, cluster, 1), job)
        place = started.index("exec")
        assert started[place - 1 : place + 2] == ["singularity", "exec", "--nv"]

    def test_a_stage_has_its_own(self) -> None:
        spec = yaml.safe_load(CHAIN)
        spec["container"] = {"runtime": "apptainer", "image": "/of/the/sweep.sif"}
        spec["stages"]["prepare"]["container"] = {"runtime": "pyxis", "image": "/of/{{ stage }}.sqsh"}
        jobs = jobs_of(json.dumps(spec), ClusterProfile.model_validate(PROFILE))
        images = {stage: job.container.image for stage, job in jobs.items() if job.container}
        assert images.pop("prepare") == "/of/prepare.sqsh"
        assert set(images.values()) == {"/of/the/sweep.sif"}
        assert set(images) == set(jobs) - {"prepare"}
        again = [type(job).from_json(json.loads(json.dumps(job.to_json()))) for job in jobs.values()]
        assert again == list(jobs.values())


def run_job(
    script: str, job: Job, sandbox: Sandbox, module_status: int = 0, loaded: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a script as Slurm would, from a file, and return its end."""
    (sandbox.bin / "module").write_text(f"#!/bin/sh\necho 'no such module' >&2\nexit {module_status}\n")
    attempt = Path(job.stage_dir) / "1"
    attempt.mkdir(parents=True, exist_ok=True)
    (attempt / "jobid").write_text("7\n")
    (sandbox.folder / "job.sh").write_text(script)
    environment = {"CALLS": str(sandbox.calls_file), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    return subprocess.run(
        ["bash", str(sandbox.folder / "job.sh")],
        capture_output=True,
        text=True,
        check=False,
        cwd=sandbox.folder,
        env={"PATH": f"{sandbox.bin}:/usr/bin:/bin", "LOADEDMODULES": loaded, **environment},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "loaded", "ends"),
    [
        (0, "", False),
        (3, "", True),
        (3, "CUDA/13", True),
        (3, "CUDA/13.1:it's", True),
        (3, "Core:it's/2:CUDA/13", False),
    ],
)
def test_a_job_without_its_modules_ends(status: int, loaded: str, ends: bool, sandbox: Sandbox) -> None:
    cluster = sandbox.cluster(modules=["CUDA/13", "it's"])
    (job,) = jobs_of(train_spec(), cluster).values()
    done = run_job(job_script(job, cluster, 1), job, sandbox, status, loaded)
    assert done.returncode == (status if ends else 0)
    message = (
        f"the modules of the cluster profile were not loaded: status {status} of module load: CUDA/13 it's"
    )
    assert (message in done.stderr) is ends
    assert sandbox.calls_file.exists() is not ends


@pytest.mark.slow
def test_a_failing_line_of_setup_is_named_and_the_job_goes_on(sandbox: Sandbox) -> None:
    (sandbox.folder / "activate").write_text("false\nexport ACTIVATED=1\nfalse\n")
    cluster = sandbox.cluster(
        setup=[
            "source ./activate",
            "if false",
            "then exit 9",
            "fi",
            "false || true",
            "f() { false; true; }; f",
            "module load missing",
            "cd nowhere 2>/dev/null",
        ]
    )
    (job,) = jobs_of(train_spec(), cluster).values()
    done = run_job(job_script(job, cluster, 1) + "\nfalse\ntrue\n", job, sandbox, 1)
    assert done.returncode == 0
    named = [line for line in done.stderr.splitlines() if "airflow-megatron: setup" in line]
    assert named == [
        f"airflow-megatron: setup: status 1 of a line, the job goes on: {line}"
        for line in ("source ./activate", "module load missing", "cd nowhere 2> /dev/null")
    ]
    assert sandbox.calls_file.exists()
