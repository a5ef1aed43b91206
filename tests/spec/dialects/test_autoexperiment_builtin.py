"""AutoExperiment files with ``template: builtin``, which use this project's scripts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.megatron.commands.commands import job_command
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.submission.job_script import render_job_script
from airflow_megatron.spec.dialects.autoexperiment import dialect as autoexperiment
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.jobs import Job

FILE = """\
cmd: "sbatch {sbatch_script}"
template: builtin
NUM_LAYERS: 12
HIDDEN_SIZE: 768
NUM_ATTN_HEADS: 12
SEQ_LENGTH: 2048
MICRO_BATCH_SIZE: 8
GLOBAL_BATCH_SIZE: 256
LR: [2e-3, 1e-3]
TRAIN_ITERS: 20000
SAVE_INTERVAL: 1000
TOKENIZER_MODEL: /data/tok/neox
TOKENIZER_TYPE: HuggingFaceTokenizer
TASKS_PATH: /data/tasks/oellm-core
MODEL_TYPE: opensci
PHASE:
  - PRETRAIN:
      MODE:
        - TRAIN: {X: 1}
        - CONVERT_EVAL: {X: 2}
  - COOLDOWN:
      TRAIN_ITERS: 10000
      ITER: 9000
      start_condition_cmd: "./cooldown_helper.sh x {EXP} {ITER} 10k"
      MODE:
        - TRAIN: {X: 1}
        - CONVERT_EVAL: {X: 2}
EXP: "lr{LR}"
output_file: "logs/{name}.out"
sbatch_script: "sb/{name}.sbatch"
name: "{EXP}_{PHASE}_{MODE}"
"""


@pytest.fixture
def cluster() -> ClusterProfile:
    return load_cluster("local")


def jobs_of(text: str, cluster: ClusterProfile) -> dict[str, Job]:
    sweep = autoexperiment.load(load_yaml_text(text, "study.yaml"))
    return {job.stage: job for job in sweep.jobs(sweep.points[0], cluster)}


def test_modes_that_differ_by_name_only_are_stages(cluster: ClusterProfile) -> None:
    jobs = jobs_of(FILE, cluster)
    assert {stage: job.kind for stage, job in jobs.items()} == {
        "PRETRAIN_TRAIN": "train",
        "PRETRAIN_CONVERT_EVAL": "convert",
        "PRETRAIN_CONVERT_EVAL.evaluate": "evaluate",
        "COOLDOWN_TRAIN": "train",
        "COOLDOWN_CONVERT_EVAL": "convert",
        "COOLDOWN_CONVERT_EVAL.evaluate": "evaluate",
    }
    assert jobs["COOLDOWN_TRAIN"].iteration == 9000
    assert jobs["COOLDOWN_TRAIN"].parent_dir == jobs["PRETRAIN_TRAIN"].run_dir
    assert jobs["COOLDOWN_CONVERT_EVAL"].run_dir == jobs["COOLDOWN_TRAIN"].run_dir


def test_each_checkpoint_is_converted_and_evaluated_as_it_comes(cluster: ClusterProfile) -> None:
    jobs = jobs_of(FILE, cluster)
    training = jobs["PRETRAIN_TRAIN"]
    for stage in ("PRETRAIN_CONVERT_EVAL", "PRETRAIN_CONVERT_EVAL.evaluate"):
        job = jobs[stage]
        assert job.start is not None
        assert job.finish is not None
        assert job.start_every_attempt
        fresh = next(leaf for leaf in job.start.leaves() if leaf.kind == "new_checkpoint")
        assert fresh.iteration in (None, 0)
        assert "each_checkpoint.py" in " ".join(job_command(job, cluster))
    source = next(
        leaf
        for leaf in jobs["PRETRAIN_CONVERT_EVAL"].start.leaves()  # type: ignore[union-attr]
        if leaf.kind == "new_checkpoint"
    )
    assert source.path == training.checkpoint_dir


def test_the_helper_names_the_first_iteration(cluster: ClusterProfile) -> None:
    text = FILE.replace(
        "        - CONVERT_EVAL: {X: 2}\n  - COOLDOWN",
        "        - CONVERT_EVAL: {start_condition_cmd: 'x/convert_helper.sh /runs/a ignored 5000'}\n  - COOLDOWN",
    )
    command = " ".join(job_command(jobs_of(text, cluster)["PRETRAIN_CONVERT_EVAL"], cluster))
    assert "--from-iteration 5000" in command


@pytest.mark.parametrize(
    ("line", "architecture"),
    [
        ("MODEL_TYPE: opensci", "opensci"),
        ("ARCHITECTURE: OpensciForCausalLM", "opensci"),
        ("ARCHITECTURE: Qwen3MoeForCausalLM", "qwen3_moe"),
        ("ARCHITECTURE: GPT2LMHeadModel", "gpt2"),
        ("X: 1", None),
    ],
)
def test_the_architecture_of_the_converted_model(
    line: str, architecture: str | None, cluster: ClusterProfile
) -> None:
    words = job_command(
        jobs_of(FILE.replace("MODEL_TYPE: opensci", line), cluster)["COOLDOWN_CONVERT_EVAL"], cluster
    )
    assert ("--architecture" in words) == (architecture is not None)
    if architecture:
        assert words[words.index("--architecture") + 1] == architecture


def test_communication_overlaps_as_in_the_script_of_upstream(cluster: ClusterProfile) -> None:
    params = jobs_of(FILE, cluster)["PRETRAIN_TRAIN"].params
    assert params["overlap_grad_reduce"] is params["overlap_param_gather"] is True


@pytest.mark.parametrize("line", ["TRAIN_ITERS: 'expr({TOKENZ}//2)'", "TRAIN_ITERS: '{TOKENZ}'"])
def test_a_misspelt_key_is_refused(line: str, cluster: ClusterProfile) -> None:
    text = FILE.replace("TRAIN_ITERS: 20000", f"TOKENS: 1000\n{line}")
    with pytest.raises(
        SpecError, match=r"study.yaml:11:1: TRAIN_ITERS: there is no key 'TOKENZ'.*did you mean 'TOKENS'"
    ):
        jobs_of(text, cluster)


PLAIN = FILE[: FILE.index("PHASE:")] + FILE[FILE.index("EXP:") :].replace("_{PHASE}_{MODE}", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "NUM_LAYERZ: 24",
            "template: builtin has no key 'NUM_LAYERZ', and no text here reads it (did you",
        ),
        ("num_layers: 24", "did you mean 'NUM_LAYERS'?"),
        ("SEED: 5", "SEED: neither template: builtin nor another value reads it"),
        (
            "start_condition_cmd: 'test -e /x && echo 1'",
            "start_condition_cmd: template: builtin does not ask it",
        ),
        (
            "termination_cmd: 'echo 1'",
            "cmd, sbatch_script, output_file, termination_cmd: template: builtin submits",
        ),
    ],
)
def test_what_our_own_scripts_do_not_use_is_named(line: str, message: str) -> None:
    sweep = autoexperiment.load(load_yaml_text(f"{PLAIN}{line}\n", "study.yaml"))
    assert any(message in str(problem) for problem in sweep.warnings()), sweep.warnings()


def test_a_plain_file_has_one_warning_of_its_fields() -> None:
    sweep = autoexperiment.load(load_yaml_text(PLAIN, "study.yaml"))
    told = [problem.message for problem in sweep.warnings() if "termination_str" not in problem.message]
    assert len(told) == 1
    assert told[0].startswith("cmd, sbatch_script, output_file: template: builtin submits")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("PARTITION: 'a b'", "PARTITION is 'a b', which cannot be its name"),
        ("ACCOUNT: 'x;y'", "ACCOUNT is 'x;y', which cannot be its name"),
        ("NODES: 0", "NODES is 0, not a whole number from 1 to 100000000"),
        ("NUM_GPUS: 0", "NUM_GPUS is 0, not a whole number from 1 to 100000000"),
        (f"NODES: {10**400}", "NODES is 1000"),
        (f"TIME: {10**400}", "TIME is 1000"),
        (f"TIME: '{10**400}'", "TIME is '1000"),
        ("NODES: 4\nNUM_GPUS: 6", "NUM_GPUS is 6, which 4 NODES do not divide"),
        ("DISABLE_BIAS_LINEAR: true", "DISABLE_BIAS_LINEAR is True"),
        ("DISABLE_BIAS_LINEAR: '--disable-bias'", "DISABLE_BIAS_LINEAR is '--disable-bias'"),
    ],
)
def test_values_that_cannot_be_used_are_refused(line: str, message: str, cluster: ClusterProfile) -> None:
    text = f"{PLAIN}{line}\n"
    with pytest.raises(SpecError) as refused:
        jobs_of(text, cluster)
    (problem,) = refused.value.problems
    assert message in problem.message
    assert text.splitlines()[problem.line - 1].startswith(message.split(" ", 1)[0])


@pytest.mark.parametrize("value", [" ", "%j", "ten"])
@pytest.mark.parametrize(
    ("key", "old", "job", "told"),
    [
        ("TRAIN_ITERS", "20000", "PRETRAIN_TRAIN", "is {!r}, not a whole number"),
        ("TRAIN_ITERS", "10000", "COOLDOWN_TRAIN", "is {!r}, not a whole number"),
        ("ITER", "9000", "COOLDOWN_TRAIN", "starts from checkpoint {!r}, which does not exist"),
    ],
)
def test_iterations_that_are_no_numbers_are_refused(
    key: str, old: str, job: str, told: str, value: str, cluster: ClusterProfile
) -> None:
    text = FILE.replace(f"{key}: {old}", f"{key}: '{value}'")
    with pytest.raises(SpecError) as refused:
        jobs_of(text, cluster)
    (problem,) = refused.value.problems
    assert job in problem.message
    assert told.format(value) in problem.message
    assert f"{key}: '{value}'" in text.splitlines()[problem.line - 1]


@pytest.mark.parametrize("quote", ["", "'"])
@pytest.mark.parametrize("key", ["TRAIN_ITERS", "NUM_LAYERS", "SAVE_INTERVAL"])
def test_numbers_of_any_length_are_read(key: str, quote: str, cluster: ClusterProfile) -> None:
    text = re.sub(rf"^{key}: .*", f"{key}: {quote}{10**400}{quote}", PLAIN, flags=re.MULTILINE)
    assert jobs_of(text, cluster)["job"].params[key.lower()] == 10**400


def test_no_training_length_is_no_crash(cluster: ClusterProfile) -> None:
    text = PLAIN.replace("TRAIN_ITERS: 20000", "TRAIN_ITERS: ''")
    assert "eval_interval" not in jobs_of(text, cluster)["job"].params


def test_a_finding_on_an_argument_stands_at_its_key() -> None:
    sweep = autoexperiment.load(load_yaml_text(PLAIN, "study.yaml"))
    assert sweep.place_of("job", "num_layers") == ("NUM_LAYERS",)
    assert sweep.place_of("job", "gpus_per_node") == ()
    assert sweep.place_of("job", "lr") == ("LR",)


@pytest.mark.parametrize("name", ["x$(touch PWNED)", "x`id`", 'x"; touch PWNED; "', "x $HOME", "xé"])
def test_a_name_cannot_run_commands_in_scripts(name: str, cluster: ClusterProfile) -> None:
    text = PLAIN.replace('name: "{EXP}"', f'name: {json.dumps(f"{name}_")[:-1]}{{EXP}}"')
    for job in jobs_of(text, cluster).values():
        assert job.name.startswith(name)
        script = render_job_script(job, cluster, 1, shipped("sbatch"))
        assert name not in script


def test_a_name_with_a_line_break_is_refused(cluster: ClusterProfile) -> None:
    with pytest.raises(SpecError, match="with a control character") as refused:
        jobs_of(PLAIN.replace('name: "', 'name: "x\\n#SBATCH --array=0-9\\n'), cluster)
    assert PLAIN.splitlines()[refused.value.problems[0].line - 1].startswith("name:")


COMPLETE = FILE.replace(
    "SEQ_LENGTH: 2048", "SEQ_LENGTH: 2048\nMAX_POSITION_EMBEDDINGS: 2048\nDATA_PATH: /data/c4/merged"
)


def errors_of(text: str, directory: Path, *settings: str) -> list[Problem]:
    """Return the errors that the checks find in a file."""
    (directory / "study.yaml").write_text(text)
    with pytest.raises(SpecError) as refused:
        check_sweep(load_sweep(directory / "study.yaml", settings), load_cluster("local"))
    return list(refused.value.problems)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "written", "message"),
    [
        ("TRAIN_ITERS: 20000", "TRAIN_ITERS: 20000.5", "must be an integer, not 20000.5"),
        ("      TRAIN_ITERS: 10000", "      TRAIN_ITERS: 10000.5", "must be an integer, not 10000.5"),
        (
            "GLOBAL_BATCH_SIZE: 256",
            "GLOBAL_BATCH_SIZE: 7",
            "GLOBAL_BATCH_SIZE 7 is not divisible by MICRO_BATCH_SIZE 8 x",
        ),
        ("TOKENIZER_TYPE: HuggingFaceTokenizer", "TOKENIZER_TYPE: HFT", "TOKENIZER_TYPE: cannot be 'HFT'"),
        ("      ITER: 9000", "      ITER: 9500", "needs checkpoint 9500 of PRETRAIN_TRAIN"),
    ],
)
def test_an_error_stands_at_the_value_that_causes_it(
    line: str, written: str, message: str, tmp_path: Path
) -> None:
    text = COMPLETE.replace(f"\n{line}\n", f"\n{written}\n")
    error = next(problem for problem in errors_of(text, tmp_path) if message in problem.message)
    assert text.splitlines()[error.line - 1] == written


def test_an_error_stands_at_the_item_that_a_job_takes(tmp_path: Path) -> None:
    items = "MODEL:\n  - a: {NODES: 1}\n  - b: {NODES: 0}\n  - c: {NODES: 2}\n"
    text = items + COMPLETE.replace('"lr{LR}"', '"{MODEL}_lr{LR}"')
    (error,) = errors_of(text, tmp_path)
    assert (error.line, error.message[:10]) == (3, "NODES is 0")


@pytest.mark.slow
def test_an_error_stands_at_the_option_that_causes_it(tmp_path: Path) -> None:
    (error,) = errors_of(COMPLETE, tmp_path, "MICRO_BATCH_SIZE=7")
    assert error.file == "--set MICRO_BATCH_SIZE=7"
    assert "is not divisible" in error.message


def test_a_missing_length_is_named_by_its_key(tmp_path: Path) -> None:
    (error,) = errors_of(COMPLETE.replace("TRAIN_ITERS: 20000\n", ""), tmp_path)
    assert error.message == "stage PRETRAIN_TRAIN has no TRAIN_ITERS; add TRAIN_ITERS: …"


@pytest.mark.slow
def test_a_key_of_the_training_is_no_misspelt_param_of_the_evaluation() -> None:
    plan = check_sweep(autoexperiment.load(load_yaml_text(COMPLETE, "study.yaml")), load_cluster("local"))
    assert not [problem for problem in plan.warnings if "does not read" in problem.message]
