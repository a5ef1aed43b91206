"""Jobs of Megatron-DeepSpeed: their configuration, launch, and the checkpoint that they load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_rendered_scripts import Sandbox, directives, syntax_error

from airflow_megatron.plan.job_scripts import job_digest, job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.model.schema import ContainerSection
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile

SPEC: dict[str, Any] = {
    "name": "x",
    "trainer": "megatron_deepspeed",
    "point": "p",
    "megatron": {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "seq_length": 128,
        "max_position_embeddings": 128,
        "micro_batch_size": 1,
        "global_batch_size": 16,
        "bf16": True,
        "save_interval": 10,
        "lr": 1e-3,
    },
    "slurm": {"nodes": 2, "gpus_per_node": 4},
    "stages": {
        "search": {"kind": "lr_finder", "megatron": {"train_iters": 100}},
        "pretrain": {"kind": "train", "megatron": {"train_iters": 40, "lr_decay_style": "constant"}},
        "cooldown": {
            "kind": "train",
            "parent": "pretrain",
            "start": {"checkpoint": 20},
            "megatron": {
                "train_iters": 30,
                "lr_decay_style": "constant",
                "lr_constant_plus_cooldown": True,
                "override_opt_param_scheduler": True,
            },
        },
    },
}
TRAINER = {"checkout": "/opt/Megatron-DeepSpeed", "launcher": "mpiexec"}


def spec(**megatron: Any) -> str:
    return json.dumps({**SPEC, "megatron": {**SPEC["megatron"], **megatron}})


def jobs_of(text: str, cluster: ClusterProfile) -> dict[str, Job]:
    return {job.stage: job for job in check_sweep(load_sweep_text(text, "s.yaml"), cluster).jobs}


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    sandbox = Sandbox(tmp_path)
    for name in ("mpiexec", "env"):
        (sandbox.bin / name).write_text(Sandbox.RECORD)
        (sandbox.bin / name).chmod(0o755)
    (sandbox.bin / "scontrol").write_text("#!/bin/sh\nprintf 'n1\\nn2\\n'\n")
    (sandbox.bin / "scontrol").chmod(0o755)
    return sandbox


def site(sandbox: Sandbox, **trainer: Any) -> ClusterProfile:
    return sandbox.cluster(trainers={"megatron_deepspeed": {**TRAINER, **trainer}})


@pytest.mark.slow
def test_mpiexec_starts_a_process_a_gpu_with_the_written_configuration(sandbox: Sandbox) -> None:
    job = jobs_of(spec(deepspeed_config={"zero_optimization": {"overlap_comm": True}}), site(sandbox))[
        "pretrain"
    ]
    script = job_script(job, site(sandbox), 1)
    (started,) = sandbox.run(script, job)
    assert started[:6] == ["mpiexec", "-n", "8", "-ppn", "4", str(sandbox.bin / "python")]
    assert started[6] == "/opt/Megatron-DeepSpeed/pretrain_gpt_alcf.py"
    assert "--no-pipeline-parallel" in started
    assert {"--ntasks-per-node=4", "--nodes=2"} <= set(directives(script))
    config = json.loads(Path(started[started.index("--deepspeed_config") + 1]).read_text())
    assert config["zero_optimization"] == {"stage": 1, "overlap_comm": True}
    assert (config["train_batch_size"], config["train_micro_batch_size_per_gpu"]) == (16, 1)
    assert Job.from_json(job.to_json()) == job
    assert job_digest(job) != job_digest(jobs_of(spec(), site(sandbox))["pretrain"])


def test_a_configuration_file_of_the_users_own(sandbox: Sandbox) -> None:
    job = jobs_of(spec(deepspeed_config="/data/ds.json"), site(sandbox))["pretrain"]
    assert job.files == {}
    assert job.command[job.command.index("--deepspeed_config") + 1] == "/data/ds.json"
    with pytest.raises(SpecError, match="12 is not a multiple of"):
        jobs_of(spec(deepspeed_config="/data/ds.json", global_batch_size=12), site(sandbox))


def test_deepspeeds_own_launcher(sandbox: Sandbox) -> None:
    job = jobs_of(spec(), site(sandbox, launcher="deepspeed"))["pretrain"]
    (started,) = sandbox.run(job_script(job, site(sandbox, launcher="deepspeed"), 1), job)
    assert started[1:6] == [
        "-m",
        "deepspeed.launcher.runner",
        "--force_multi",
        "--no_ssh_check",
        "--launcher",
    ]
    assert Path(started[started.index("--hostfile") + 1]).read_text() == "n1 slots=4\nn2 slots=4\n"
    assert started[-len(job.command) + 1 :] == list(job.command[1:])


@pytest.mark.slow
def test_the_checkpoint_that_an_attempt_loads(sandbox: Sandbox) -> None:
    jobs = jobs_of(spec(), site(sandbox))
    job, parent = jobs["cooldown"], f"{jobs['pretrain'].run_dir}/checkpoints"
    script = job_script(job, site(sandbox), 1)
    assert sandbox.run(script, job)[0][-4:] == ["--load", parent, "--load-tag", "global_step20"]
    tracker = Path(job.checkpoint_dir) / "latest_checkpointed_iteration.txt"
    tracker.parent.mkdir(parents=True)
    tracker.write_text("25")
    (started,) = sandbox.run(script, job, SLURM_RESTART_COUNT="1")
    assert started[6:] == [*job.command[1:], "--load-tag", "global_step25"]
    assert (
        f'"airflow-megatron: loading checkpoint from "{job.checkpoint_dir}" at iteration $iteration"'
        in script
    )


@pytest.mark.slow
def test_a_search_ends_with_what_it_suggests(sandbox: Sandbox) -> None:
    job = jobs_of(spec(), site(sandbox))["search"]
    script = job_script(job, site(sandbox), 1)
    trained, suggested = sandbox.run(script, job)
    assert "--lr-finder" in trained
    assert suggested == ["python", "/opt/Megatron-LM/lr_finder.py", "suggest", job.run_dir]
    (sandbox.bin / "mpiexec").write_text("#!/bin/sh\nexit 9\n")
    with pytest.raises(AssertionError):  # the script's own status is the training's
        sandbox.run(script, job, SLURM_RESTART_COUNT="1")


def test_a_search_that_is_too_short(sandbox: Sandbox) -> None:
    stages = {"search": {"kind": "lr_finder", "megatron": {"train_iters": 99}}}
    with pytest.raises(SpecError, match=r"a tenth of train_iters 99, too few steps .* write 100 or more"):
        jobs_of(json.dumps({**SPEC, "stages": stages}), site(sandbox))


@pytest.mark.slow
def test_train_alcf_is_run_once_with_its_variables(sandbox: Sandbox) -> None:
    script_knows = {
        "max_position_embeddings": 2048,
        "num_key_value_heads": 4,
        "ffn_hidden_size": 256,
        "lr_warmup_fraction": 0.01,
        "data_file_list": "/data/books.txt",
        "init_method_std": (2 / 320) ** 0.5,
        "word_embedding_init_std": 0.632,
        "normalization": "rmsnorm",
        "split": "990,10,0",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        **dict.fromkeys(("add_bias_linear", "apply_query_key_layer_scaling"), False),
        **dict.fromkeys(("bias_gelu_fusion", "bias_dropout_fusion", "masked_softmax_fusion"), False),
        "gradient_accumulation_fusion": False,
        **dict.fromkeys(("swiglu", "use_rotary_position_embeddings", "shuffle_sample_in_corpus"), True),
        **dict.fromkeys(("accumulate_allreduce_grads_in_fp32", "adjust_word_embedding_init"), True),
        "untie_embeddings_and_output_weights": True,
    }
    cluster = site(sandbox, entry="train_alcf.sh")
    jobs = jobs_of(spec(**script_knows), cluster)
    script = job_script(jobs["cooldown"], cluster, 1)
    assert syntax_error(script) == ""
    (started,) = sandbox.run(script, jobs["cooldown"])
    assert started[:3] == ["env", "-C", "/opt/Megatron-DeepSpeed"]
    assert {"WORLD_SIZE=8", "NGPU_PER_HOST=4", "GRAD_ACC_STEPS=2", "TRAIN_ITERS=30"} <= set(started)
    assert started[-4:] == [
        "--load",
        f"{jobs['pretrain'].run_dir}/checkpoints",
        "--load-tag",
        "global_step20",
    ]
    assert f"export LOAD={jobs['pretrain'].run_dir}/checkpoints\n" in script
    assert "deepspeed_config" not in script
    searched = jobs_of(spec(**script_knows, **{"lr": "{{ file_value('/data/lr') }}"}), cluster)["pretrain"]
    assert not any(word.startswith("LR=") for word in searched.command)
    (sandbox.folder / "lr").write_text("4e-4\n")
    read = job_script(searched, cluster, 1).replace("/data/lr", str(sandbox.folder / "lr"))
    (started,) = sandbox.run(read, searched)
    assert started[started.index("--lr") + 1] == "4e-4"
    with pytest.raises(SpecError, match="takes no value that an earlier job writes"):
        jobs_of(spec(**script_knows, **{"seed": "{{ file_value('/data/seed') }}"}), cluster)


@pytest.mark.parametrize(
    ("megatron", "message"),
    [
        (
            {"global_batch_size": 12},
            "12 is not a multiple of micro_batch_size (1) × data-parallel size (8); use 8 or 16",
        ),
        ({"save_interval": None}, "save_interval: is needed"),
        ({"num_attention_heads": 3}, "hidden_size: 64 is not a multiple of num_attention_heads (3)"),
        ({"lr_warmup_fraction": 0.1, "lr_warmup_iters": 3}, "lr_warmup_fraction: excludes lr_warmup_iters"),
        ({"max_position_embeddings": 64}, "64 is below seq_length (128)"),
        ({"zero_stag": 1}, "megatron_deepspeed has no argument 'zero_stag'"),
        ({"min_lr": 1}, "min_lr: 1 is above lr (0.001)"),
        ({"optimizer": "muonn"}, "optimizer: cannot be 'muonn'"),
        ({"deepspeed_config": {"zero_optimisation": {}}}, "did you mean zero_optimization?"),
    ],
)
def test_what_the_job_would_end_with_is_refused(
    megatron: dict[str, Any], message: str, sandbox: Sandbox
) -> None:
    with pytest.raises(SpecError) as caught:
        jobs_of(spec(**megatron), site(sandbox))
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["MLFLOW_TRACKING_TOKEN", "PYTHON_INDEX_PASSWORD", "UCX_KEY", "NCCL_SECRET"])
def test_its_launcher_hands_on_no_secret(name: str, sandbox: Sandbox) -> None:
    """DeepSpeed would write such variables to mpirun's command line, which all users of the nodes can read."""
    text = json.dumps({**SPEC, "secrets": {name: {"file": "~/.token"}}})
    with pytest.raises(SpecError, match=f"DeepSpeed's launcher would write {name} into the command line"):
        jobs_of(text, site(sandbox, launcher="deepspeed"))
    assert jobs_of(text, site(sandbox, launcher="mpiexec"))["pretrain"].secrets
    other = json.dumps({**SPEC, "secrets": {"HF_TOKEN": {"file": "~/.token"}}})
    assert jobs_of(other, site(sandbox, launcher="deepspeed"))["pretrain"].secrets


@pytest.mark.parametrize("runtime", ["pyxis", "docker", "podman-hpc"])
def test_mpiexec_needs_a_container_that_keeps_its_environment(runtime: str, sandbox: Sandbox) -> None:
    cluster = site(sandbox, launcher="mpiexec").model_copy(
        update={"container": ContainerSection(runtime=runtime, image="i")}
    )
    with pytest.raises(SpecError, match=f"mpiexec cannot start a {runtime} container; use the launcher srun"):
        jobs_of(spec(), cluster)


def test_no_conversion_and_no_foreign_launcher(sandbox: Sandbox) -> None:
    convert = {**SPEC["stages"], "convert": {"kind": "convert", "parent": "pretrain"}}
    with pytest.raises(SpecError, match="does not read DeepSpeed's checkpoints"):
        jobs_of(json.dumps({**SPEC, "stages": convert}), site(sandbox))
    with pytest.raises(SpecError, match="no checkout of Megatron-DeepSpeed"):
        jobs_of(spec(), sandbox.cluster())
    upstream = sandbox.cluster(trainers={"megatron_core": {"launcher": "mpiexec"}})
    thin = {
        "name": "y",
        "point": "p",
        "stages": {"pretrain": {"kind": "train", "megatron": {"train_iters": 9}}},
    }
    with pytest.raises(SpecError, match="mpiexec does not pass ranks to megatron_core"):
        jobs_of(json.dumps(thin), upstream)


@pytest.mark.parametrize("each", [{"params": {"iteration": 40}}, {"each_checkpoint": True}])
def test_its_checkpoints_are_not_converted(each: dict[str, Any], sandbox: Sandbox) -> None:
    stages = {
        "pretrain": SPEC["stages"]["pretrain"],
        "convert": {"kind": "convert", "parent": "pretrain", **each},
    }
    text = json.dumps({**SPEC, "params": {"tokenizer": "/t"}, "stages": stages})
    with pytest.raises(SpecError, match=r"does not read DeepSpeed's checkpoints; .*mds_to_hf\.py"):
        jobs_of(text, site(sandbox))
