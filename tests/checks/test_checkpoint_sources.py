"""Stages that start from a checkpoint outside the sweep: ``start: {from: …}``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from example_specs import spec_text

from airflow_megatron.megatron.arguments.tables import argument_table, known_releases
from airflow_megatron.plan.job_scripts import job_digest, job_script
from airflow_megatron.plan.overview import waits_for
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource, escaped, is_pattern
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.supervision.attempts import attempt_record

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.schema import TrainerName

MODEL = "megatron: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,\
 seq_length: 128, global_batch_size: 8, micro_batch_size: 8, lr: 1e-3, data_path: [/d],\
 tokenizer_type: NullTokenizer, vocab_size: 100, save_interval: 50, eval_interval: 50}"


def training(
    start: str,
    cluster: ClusterProfile,
    *,
    sweep: str = "",
    more: str = "",
    parent: str = "",
    iters: int = 100,
) -> list[Job]:
    stages = f"stages:\n  train:\n    kind: train\n    {parent}\n    start: {start}\n"
    stages += f"    megatron: {{train_iters: {iters}}}\n"
    point = "{{ at }}" if sweep else "p"
    text = spec_text(sweep, point=point, stages=stages, more=f"{MODEL}\n{more}")
    return list(check_sweep(load_sweep_text(text, "s.yaml"), cluster).jobs)


def with_checkout(cluster: ClusterProfile, trainer: TrainerName) -> ClusterProfile:
    section = cluster.trainer(trainer).model_copy(update={"checkout": "/upstream"})
    return cluster.model_copy(update={"trainers": {trainer: section}})


def begins(job: Job, cluster: ClusterProfile) -> str:
    """Return the arguments that the script adds while the training has no checkpoint."""
    lines = job_script(job, cluster, 1).splitlines()
    added = [line.strip() for line in lines if line.strip().startswith("command+=(")]
    return added[0].removeprefix("command+=(").removesuffix(")")


@pytest.mark.parametrize(
    ("start", "words", "needs", "iteration"),
    [
        ("{from: /old/run, iteration: 20}", "--load /old/run --ckpt-step 20", "/old/run/iter_0000020", 20),
        ("{from: /old/iter_0000020}", "--load /old --ckpt-step 20", "/old/iter_0000020", 20),
        ("{from: /old/run/}", "--load /old/run", "/old/run/latest_checkpointed_iteration.txt", None),
        (
            "{from: /old, iteration: 20, mode: finetune}",
            "--load /old --ckpt-step 20 --finetune",
            "/old/iter_0000020",
            None,
        ),
        (
            "{from: '/my runs/a', iteration: 20}",
            "--load '/my runs/a' --ckpt-step 20",
            "'/my runs/a/iter_0000020'",
            20,
        ),
    ],
)
@pytest.mark.parametrize("trainer", ["megatron_core", "megatron_lm"])
def test_a_training_loads_it_until_it_has_its_own(
    cluster: ClusterProfile, trainer: TrainerName, start: str, words: str, needs: str, iteration: int | None
) -> None:
    cluster = with_checkout(cluster, "megatron_lm")
    (job,) = training(start, cluster, more=f"trainer: {trainer}")
    assert begins(job, cluster) == words
    assert job.iteration == iteration
    script = job_script(job, cluster, 1)
    own = f"if [ ! -s {job.checkpoint_dir}/latest_checkpointed_iteration.txt ]; then"
    assert script.index(own) < script.index(f"[ ! -e {needs} ]") < script.index("command+=(")
    assert [job.command[at + 1] for at, word in enumerate(job.command) if word == "--load"] == [
        job.checkpoint_dir
    ]
    assert "--finetune" not in job.command


def test_a_deepspeed_training_is_given_the_tag(cluster: ClusterProfile) -> None:
    cluster = with_checkout(cluster, "megatron_deepspeed")
    more = "trainer: megatron_deepspeed\nslurm: {gpus_per_node: 1}"
    (job,) = training("{from: /old, iteration: 20, mode: finetune}", cluster, more=more)
    assert begins(job, cluster) == "--load /old --load-tag global_step20 --finetune"
    assert "[ ! -e /old/global_step20 ]" in job_script(job, cluster, 1)


def test_every_release_takes_the_arguments() -> None:
    for release in known_releases():
        assert argument_table(release).get("ckpt_step"), release
        assert argument_table(release).get("finetune"), release


def test_each_point_starts_from_its_own(cluster: ClusterProfile) -> None:
    start = '{from: "/old/{{ at }}", iteration: "{{ step }}", mode: "{{ how }}"}'
    sweep = "configs:\n  - {at: a, step: 10, how: continue}\n  - {at: b, step: 20, how: finetune}"
    first, second = training(start, cluster, sweep=sweep)
    assert first.source == CheckpointSource("/old/a", 10)
    assert second.source == CheckpointSource("/old/b", 20, "finetune")
    assert begins(second, cluster) == "--load /old/b --ckpt-step 20 --finetune"
    assert (waits_for(first), waits_for(second)) == (
        "from /old/a, iteration 10",
        "from /old/b, iteration 20 (finetune)",
    )


def test_a_job_is_restored_from_its_record_and_the_source_is_part_of_its_digest(
    cluster: ClusterProfile,
) -> None:
    (job,) = training("{from: /old, iteration: 10}", cluster)
    (other,) = training("{from: /older, iteration: 10}", cluster)
    assert Job.from_json(job.to_json()) == job
    assert job_digest(job) != job_digest(other)
    assert attempt_record(job, 1)["loads"] == ["--load", "/old", "--ckpt-step", "10"]


def test_it_waits_for_its_parent_or_condition_as_well(cluster: ClusterProfile) -> None:
    stages = """
    stages:
      prepare: {kind: command, command: [prepare]}
      train: {kind: train, parent: prepare, start: {from: /old, iteration: 10}, megatron: {train_iters: 100}}
    """
    plan = check_sweep(load_sweep_text(spec_text(point="p", stages=stages, more=MODEL), "s.yaml"), cluster)
    train = plan.jobs[-1]
    assert [item.to_plan()["until"] for item in train.depends_on] == ["finished"]
    (alone,) = training("{from: /old, iteration: 10, file: /old/ready}", cluster)
    assert str(alone.start) == "file /old/ready"


@pytest.mark.parametrize(
    ("start", "told"),
    [
        ("{from: old/run, iteration: 10}", "not absolute"),
        ("{from: '', iteration: 10}", "from"),
        ("{from: /old, iteration: 0}", "iteration 1 on"),
        ("{from: /old/iter_0000020, iteration: 10}", "names iteration 20"),
        ("{from: /old/latest_checkpointed_iteration.txt}", "write from: /old"),
        ("{from: /old/iter_0000020/mp_rank_00}", "write from: /old/iter_0000020"),
        ("{from: /old, checkpoint: 10}", "two checkpoints"),
        ("{from: /old, mode: finetun}", "mode"),
        ("{from: /old, mode: \"{{ 'tune' }}\"}", "continue or finetune"),
        ("{iteration: 10}", "from"),
        ("{mode: finetune}", "from"),
        ("{from: /old, log: x}", "log needs a parent"),
        ("{from: /old, iteration: 100}", "nothing to train"),
        ('{from: "/old/{{ nowhere }}"}', "nowhere"),
        ('{from: "/a\\nb"}', "control character"),
    ],
)
def test_what_cannot_be_started_from_is_refused_at_its_line(
    cluster: ClusterProfile, start: str, told: str
) -> None:
    with pytest.raises(SpecError, match=told) as error:
        training(start, cluster)
    assert len(error.value.problems) == 1
    assert error.value.problems[0].line > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("load: /old, ckpt_step: 20", "start: {from: /old, iteration: 20}"),
        ("load: /old, finetune: true", "start: {from: /old, mode: finetune}"),
        ("finetune: true", "loads only the weights"),
        ("pretrained_checkpoint: /old", ""),
        ("load: '{{ run_dir }}/checkpoints'", ""),
    ],
)
def test_arguments_that_begin_every_attempt_anew_are_warned_of(
    cluster: ClusterProfile, given: str, told: str
) -> None:
    stages = f"stages: {{train: {{kind: train, megatron: {{train_iters: 100, {given}}}}}}}"
    plan = check_sweep(load_sweep_text(spec_text(point="p", stages=stages, more=MODEL), "s.yaml"), cluster)
    text = " ".join(map(str, plan.warnings))
    assert ("applies to every attempt" in text) is bool(told)
    assert told in text


@pytest.mark.parametrize(
    ("save", "told"),
    [("/other", True), ("{{ run_dir }}/checkpoints", False), ("{{ run_dir }}/checkpoints/", False)],
)
def test_a_training_that_saves_where_nothing_looks(save: str, told: bool, cluster: ClusterProfile) -> None:
    stages = f"stages: {{train: {{kind: train, megatron: {{train_iters: 100, save: '{save}'}}}}}}"
    plan = check_sweep(load_sweep_text(spec_text(point="p", stages=stages, more=MODEL), "s.yaml"), cluster)
    text = " ".join(map(str, plan.warnings))
    assert (f"it saves to {save}, and later attempts" in text) is told
    assert "applies to every attempt" not in text


@pytest.mark.parametrize("kind", ["benchmark", "lr_finder", "command"])
def test_other_kinds_load_no_checkpoint(cluster: ClusterProfile, kind: str) -> None:
    stages = f"stages: {{a: {{kind: {kind}, command: [x], start: {{from: /old, iteration: 1}}}}}}"
    with pytest.raises(SpecError, match="loads no checkpoint"):
        check_sweep(load_sweep_text(spec_text(point="p", stages=stages), "s.yaml"), cluster)


CONVERT = "params: {tokenizer: /tok}"
EVALUATE = "params: {tasks: [a]}"


def planned(cluster: ClusterProfile, stages: str, sweep: str = "", point: str = "p") -> dict[str, Job]:
    plan = check_sweep(load_sweep_text(spec_text(sweep, point=point, stages=stages), "s.yaml"), cluster)
    return {job.name.removeprefix("example."): job for job in plan.jobs}


def option(job: Job, name: str) -> Any:
    return job.command[job.command.index(name) + 1]


def test_checkpoints_that_exist_are_converted_and_evaluated(cluster: ClusterProfile) -> None:
    stages = f"""
    stages:
      convert: {{kind: convert, start: {{from: "{{{{ checkpoint }}}}"}}, {CONVERT}}}
      evaluate: {{kind: evaluate, parent: convert, {EVALUATE}}}
    """
    sweep = "configs:\n  - {run: a, checkpoint: /old/a/iter_0000010}\n  - {run: b, checkpoint: /old/b/iter_0000020}"
    jobs = planned(cluster, stages, sweep, "{{ run }}")
    convert, evaluate = jobs["b.convert"], jobs["b.convert.evaluate"]
    assert (option(convert, "--load"), option(convert, "--iteration")) == ("/old/b", "20")
    assert convert.run_dir == evaluate.run_dir == "/scratch/runs/example/b"
    assert convert.outputs == ("/scratch/runs/example/b/converted_hf/iter_20/config.json",)
    assert option(evaluate, "--model") == option(convert, "--output")
    assert evaluate.outputs == ("/scratch/runs/example/b/eval_results/iter_20/results.json",)


def test_a_hugging_face_model_is_evaluated(cluster: ClusterProfile) -> None:
    stages = f"stages: {{evaluate: {{kind: evaluate, start: {{from: '{{{{ model }}}}'}}, {EVALUATE}}}}}"
    jobs = planned(cluster, stages, "model: [/hf/gpt2, /hf/mine/iter_30]", "{{ model.split('/')[-1] }}")
    plain, mine = jobs["gpt2.evaluate"], jobs["iter_30.evaluate"]
    assert (option(plain, "--model"), plain.iteration) == ("/hf/gpt2", 0)
    assert (option(mine, "--model"), mine.iteration) == ("/hf/mine/iter_30", 30)
    assert mine.outputs == ("/scratch/runs/example/iter_30/eval_results/iter_30/results.json",)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("convert", "/old/iter_0000020"),
        ("convert", "/runs/*/checkpoints/iter_0000020"),
        ("evaluate", "/hf/iter_20"),
    ],
)
def test_one_checkpoint_is_not_each(cluster: ClusterProfile, kind: str, path: str) -> None:
    params = CONVERT if kind == "convert" else EVALUATE
    stages = f"stages: {{a: {{kind: {kind}, start: {{from: '{path}'}}, each_checkpoint: true, {params}}}}}"
    with pytest.raises(SpecError, match="names one of iteration 20") as error:
        planned(cluster, stages)
    assert len(error.value.problems) == 1


def test_each_checkpoint_of_a_run_that_exists(cluster: ClusterProfile) -> None:
    stages = f"""
    stages:
      convert: {{kind: convert, start: {{from: /old}}, each_checkpoint: {{spacing: 10}}, {CONVERT}}}
      evaluate: {{kind: evaluate, parent: convert, each_checkpoint: true, {EVALUATE}}}
      others: {{kind: evaluate, start: {{from: /hf}}, each_checkpoint: true, {EVALUATE}}}
    """
    jobs = planned(cluster, stages)
    convert, evaluate, others = jobs["p.convert"], jobs["p.convert.evaluate"], jobs["p.others"]
    loop = convert.command[: convert.command.index("--")]
    assert loop[1].endswith("each_checkpoint.py")
    assert option(convert, "--source") == "/old"
    assert "--required" in loop
    assert convert.start is None
    assert "converted_checkpoints/iter_*.done" in str(convert.finish)
    assert option(evaluate, "--source") == option(convert, "--done")
    assert option(others, "--source") == "/hf/iter_{iteration}/config.json"
    assert option(others, "--model") == "/hf/iter_{iteration}"
    assert others.run_dir == "/scratch/runs/example/p/others"


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        (f"stages: {{a: {{kind: convert, start: {{from: /old}}, {CONVERT}}}}}", "start.iteration is missing"),
        (f"stages: {{a: {{kind: convert, {CONVERT}}}}}", "from: DIRECTORY"),
        (f"stages: {{a: {{kind: evaluate, {EVALUATE}}}}}", "from: DIRECTORY"),
        (
            f"stages: {{a: {{kind: convert, start: {{from: /o, iteration: 1, mode: finetune}}, {CONVERT}}}}}",
            "mode is of a training",
        ),
        (
            f"stages: {{a: {{kind: convert, start: {{from: /o, iteration: 1}}, each_checkpoint: true, {CONVERT}}}}}",
            "keep from:",
        ),
    ],
)
def test_what_cannot_be_worked_on_is_refused(cluster: ClusterProfile, stages: str, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        planned(cluster, stages)


def test_a_pattern_names_all_runs_that_match_it(cluster: ClusterProfile) -> None:
    stages = f"""
    stages:
      convert: {{kind: convert, start: {{from: "/old/lr*/checkpoints"}}, each_checkpoint: {{spacing: 10}}, {CONVERT}}}
      evaluate: {{kind: evaluate, parent: convert, each_checkpoint: true, {EVALUATE}}}
      others: {{kind: evaluate, start: {{from: "/hf/*"}}, {EVALUATE}}}
      one: {{kind: convert, start: {{from: "/old/*/checkpoints", iteration: 20}}, {CONVERT}}}
      of_one: {{kind: evaluate, parent: one, {EVALUATE}}}
    """
    jobs = planned(cluster, stages)
    convert, evaluate = jobs["p.convert"], jobs["p.convert.evaluate"]
    assert (option(convert, "--runs"), option(convert, "--source")) == ("/old/lr*/checkpoints", "{directory}")
    assert (option(convert, "--load"), option(convert, "--spacing")) == ("{directory}", "10")
    runs = f"{convert.run_dir}/runs"
    assert option(convert, "--output") == f"{runs}/{{run}}/converted_hf/iter_{{iteration}}"
    assert option(convert, "--done") == option(convert, "--done-marker")
    assert convert.outputs == (f"{runs}/convert.json",)
    assert (option(evaluate, "--runs"), evaluate.outputs) == (
        f"{runs}/*/converted_hf",
        (f"{runs}/convert.evaluate.json",),
    )
    assert option(evaluate, "--model") == "{directory}/iter_{iteration}"
    assert str(evaluate.start) == "convert finished"
    others, of_one = jobs["p.others"], jobs["p.one.of_one"]
    assert (option(others, "--runs"), option(others, "--source")) == ("/hf/*", "{directory}/config.json")
    assert option(others, "--iteration") == "0"
    assert option(jobs["p.one"], "--iteration") == "20"
    assert option(of_one, "--runs").endswith("/p/one/runs/*/converted_hf/iter_20")
    assert option(of_one, "--done").endswith("/p/one/runs/{run}/eval_results/iter_{iteration}/results.json")
    assert job_digest(others) != job_digest(planned(cluster, stages.replace("/hf/*", "/hf/?"))["p.others"])
    assert all(Job.from_json(job.to_json()) == job for job in jobs.values())


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        ("kind: train, start: {from: '/old/*'}, megatron: {train_iters: 10}", "a training starts from one"),
        (f"kind: convert, start: {{from: '/old/*/checkpoints'}}, {CONVERT}", "start.iteration is missing"),
        (
            f"kind: convert, start: {{from: '/old/*/iter_*'}}, each_checkpoint: true, {CONVERT}",
            "from: /old/* with",
        ),
        (
            f"kind: convert, start: {{from: '/o/**/c'}}, each_checkpoint: true, {CONVERT}",
            "one * for each folder",
        ),
        (f"kind: convert, start: {{from: 'old/*'}}, each_checkpoint: true, {CONVERT}", "not absolute"),
    ],
)
def test_a_pattern_that_cannot_be_worked_on_is_refused(
    cluster: ClusterProfile, stage: str, told: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(told)) as error:
        planned(cluster, f"{MODEL}\nstages: {{a: {{{stage}}}}}")
    assert len(error.value.problems) == 1


def test_two_evaluations_of_the_runs_of_one_pattern_are_refused(cluster: ClusterProfile) -> None:
    stages = f"""
    stages:
      convert: {{kind: convert, start: {{from: "/old/*/checkpoints"}}, each_checkpoint: true, {CONVERT}}}
      first: {{kind: evaluate, parent: convert, each_checkpoint: true, {EVALUATE}}}
      second: {{kind: evaluate, parent: convert, each_checkpoint: true, params: {{tasks: [b]}}}}
    """
    with pytest.raises(SpecError, match=r"runs/\*/eval_results/iter_\*/results.json, and so does stage"):
        planned(cluster, stages)


def test_brackets_stand_for_a_character_itself(cluster: ClusterProfile) -> None:
    stages = f"stages: {{a: {{kind: evaluate, start: {{from: '/hf/a[[]1]'}}, {EVALUATE}}}}}"
    assert not is_pattern("/hf/a[[]1]")
    assert is_pattern("/hf/a[12]")
    assert escaped("/a*b?[c]") == "/a[*]b[?][[]c]"
    assert option(planned(cluster, stages)["p.a"], "--model") == "/hf/a[1]"
