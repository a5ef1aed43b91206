"""Values that the jobs of a stage share are computed once, without an effect on the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.jobs import Job

TEXT = """
point: "lr{{ lr }}"
params: {nodes: 2}
sweep: {params: {lr: [1e-3, 1e-4], cooldown.save_interval: [5, 6]}}
slurm: {time: 1h, cpus_per_task: 3, options: [--exclusive]}
megatron: {train_iters: 100, save_interval: 10}
stages:
  pretrain: {kind: train, slurm: {nodes: "{{ nodes }}", options: ["--comment={{ lr }}"]}}
  cooldown: {kind: train, parent: pretrain, start: {checkpoint: 50}, slurm: {time: "{{ '2' }}h"}}
  convert: {kind: convert, parent: [pretrain, cooldown], params: {tokenizer: "{{ 't' }}"}}
"""
NAMED = TEXT.replace(", cooldown.save_interval: [5, 6]", "")


def jobs_of(text: str) -> list[Job]:
    sweep = load_sweep_text(text, "s.yaml")
    return sweep.jobs(sweep.points[0], load_cluster("local"))


def test_jobs_do_not_depend_on_the_points_before_them() -> None:
    cluster = load_cluster("local")
    together = load_sweep_text(NAMED, "s.yaml")
    jobs = [job.to_json() for point in together.points for job in together.jobs(point, cluster)]
    alone = []
    for name in ("lr0.001", "lr0.0001"):
        sweep = load_sweep_text(NAMED, "s.yaml")
        alone += [job.to_json() for job in sweep.jobs(sweep.point(name), load_cluster("local"))]
    assert jobs == alone


def test_another_cluster_is_not_answered_from_memory() -> None:
    sweep = load_sweep_text(NAMED, "s.yaml")
    local = load_cluster("local")
    other = local.model_copy(update={"name": "other", "run_root": "/elsewhere"})
    first, second = (sweep.jobs(sweep.points[0], cluster)[0] for cluster in (local, other))
    assert (first.cluster, second.cluster) == ("local", "other")
    assert second.run_dir.startswith("/elsewhere/")


def test_resources() -> None:
    sweep = load_sweep_text(NAMED, "s.yaml")
    jobs = {job.stage: job for job in sweep.jobs(sweep.point("lr0.0001"), load_cluster("local"))}
    assert jobs["pretrain"].slurm.nodes == 2
    assert jobs["pretrain"].slurm.time == 3600
    assert jobs["pretrain"].slurm.options == ["--exclusive", "--comment=0.0001"]
    assert jobs["cooldown"].slurm.time == 7200
    assert jobs["cooldown"].slurm.cpus_per_task == 3
    assert jobs["pretrain.convert"].slurm.options == ["--exclusive"]


def test_a_key_of_one_stage_reaches_that_stage_only() -> None:
    text = TEXT.replace("[5, 6]", "[5]")
    sweep = load_sweep_text(text, "s.yaml")
    jobs = {job.stage: job for job in sweep.jobs(sweep.points[0], load_cluster("local"))}
    assert jobs["cooldown"].params["save_interval"] == 5
    assert jobs["pretrain"].params["save_interval"] == 10


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{time: \"{{ 'soon' }}\"}", "slurm.time: 'soon' is not a duration"),
        ('{nodes: "{{ 1.5 }}"}', "slurm.nodes is 1.5, not a whole number"),
        ('{mem: "{{ 5 }}"}', "slurm.mem: 5 is not a memory size of Slurm; write a whole number with K, M, G"),
        ("{mem: \"{{ 'lots' }}\"}", "slurm.mem: 'lots' is not a memory size of Slurm"),
        ('{mem: "{{ 1.5 * 4 }}G"}', "slurm.mem: '6.0G' is not a memory size of Slurm"),
        ('{time: "{{ 90 }}"}', "slurm.time: 90 is not a walltime: Slurm counts a number in minutes"),
        (
            '{time: "{{ 0 }}s"}',
            "slurm.time: '0s' is not a walltime: to Slurm, 0 is no limit; write a time such as",
        ),
        ('{signal_before: "{{ 0 }}"}', "slurm.signal_before: 0 is not an interval; write 1s or more"),
        ('{time: "{{ 1e308 * 10 }}"}', "slurm.time: inf is not a duration"),
    ],
)
def test_wrong_resources(section: str, told: str) -> None:
    text = NAMED.replace(
        'slurm: {nodes: "{{ nodes }}", options: ["--comment={{ lr }}"]}', f"slurm: {section}"
    )
    sweep = load_sweep_text(text, "s.yaml")
    with pytest.raises(SpecError, match=told):
        sweep.jobs(sweep.points[0], load_cluster("local"))


def test_times_of_a_restart_policy_are_expressions() -> None:
    text = NAMED.replace(
        "slurm: {time", "restart: {backoff: '{{ nodes * 5 }}s', exclude_for: '{{ 2 }}h'}\nslurm: {time", 1
    )
    sweep = load_sweep_text(text, "s.yaml")
    job = sweep.jobs(sweep.points[0], load_cluster("local"))[0]
    assert (job.restart.backoff, job.restart.exclude_for) == (10, 7200)
    wrong = load_sweep_text(text.replace("{{ nodes * 5 }}s", "{{ stage }}"), "s.yaml")
    with pytest.raises(SpecError, match=r"restart.backoff: 'pretrain' is not a duration"):
        wrong.jobs(wrong.points[0], load_cluster("local"))


def test_an_expression_of_a_container_that_gives_no_text() -> None:
    container = "container: {runtime: apptainer, image: '{{ none }}'}\nslurm: {time"
    sweep = load_sweep_text(NAMED.replace("slurm: {time", container, 1), "s.yaml")
    with pytest.raises(
        SpecError, match=r"s.yaml:[0-9]+:.*container.image is empty: input should be a valid string"
    ):
        sweep.jobs(sweep.points[0], load_cluster("local"))


@pytest.mark.parametrize("words", ["['']", "[' ', x]", "['{{ \"\" }}']"])
def test_a_command_whose_program_is_empty(words: str) -> None:
    stages = "stages:\n  prepare: {kind: command, scope: sweep, command: [x]}"
    sweep = load_sweep_text(NAMED.replace("stages:", stages.replace("[x]", words), 1), "s.yaml")
    with pytest.raises(SpecError, match="stage prepare: command: its first word, the program, is empty"):
        sweep.shared_jobs(load_cluster("local"))


def test_restart_of_a_stage_is_merged_key_by_key_with_the_sweeps() -> None:
    text = NAMED.replace("slurm: {time", "restart: {retryable: 3, nodes: [1], failed: 2}\nslurm: {time", 1)
    text = text.replace(
        "start: {checkpoint: 50},", "start: {checkpoint: 50}, restart: {failed: null, backoff: 5s},"
    )
    sweep = load_sweep_text(text, "s.yaml")
    jobs = {job.stage: job.restart for job in sweep.jobs(sweep.points[0], load_cluster("local"))}
    assert (jobs["pretrain"].retryable, jobs["pretrain"].failed, jobs["pretrain"].nodes) == (3, 2, [1])
    cooldown = jobs["cooldown"]
    assert (cooldown.retryable, cooldown.failed, cooldown.backoff, cooldown.nodes) == (3, None, 5, [1])
    # a stage may set the default value although the sweep sets another one
    text = NAMED.replace("slurm: {time", "restart: {retryable: 3}\nslurm: {time", 1)
    text = text.replace("start: {checkpoint: 50},", "start: {checkpoint: 50}, restart: {retryable: 10},")
    sweep = load_sweep_text(text, "s.yaml")
    jobs = {job.stage: job.restart for job in sweep.jobs(sweep.points[0], load_cluster("local"))}
    assert (jobs["pretrain"].retryable, jobs["cooldown"].retryable) == (3, 10)


def test_what_follows_a_rollback_is_read_by_trainings_alone() -> None:
    """It may refer to swept values, which a stage of the whole sweep does not have."""
    sweep = load_sweep_text(
        NAMED.replace("stages:", "restart: {after_rollback: {lr: '{{ lr / 2 }}'}}\nstages:")
        + "  prepare: {kind: command, scope: sweep, command: ['true']}\n",
        "s.yaml",
    )
    cluster = load_cluster("local")
    (shared,) = sweep.shared_jobs(cluster)
    assert shared.restart.after_rollback == {}
    jobs = {job.stage: job for job in sweep.jobs(sweep.points[0], cluster)}
    assert jobs["pretrain"].restart.after_rollback == {"lr": 5e-4}
    assert jobs["pretrain.convert"].restart.after_rollback == {}


def test_a_filter_leaves_out_a_stage_and_those_after_it() -> None:
    text = TEXT.replace(", cooldown.save_interval: [5, 6]", ", cooldown.wanted: [true]").replace(
        "cooldown: {kind: train,", 'cooldown: {kind: train, filter: "{{ wanted and lr < 1e-3 }}",'
    )
    sweep = load_sweep_text(text, "s.yaml")
    stages = {
        point.name: [job.stage for job in sweep.jobs(point, load_cluster("local"))] for point in sweep.points
    }
    assert stages == {
        "lr0.001": ["pretrain", "pretrain.convert"],
        "lr0.0001": ["pretrain", "cooldown", "pretrain.convert", "cooldown.convert"],
    }


def test_a_filter_of_a_repeated_stage_reads_its_value() -> None:
    text = NAMED.replace(
        "cooldown: {kind: train,",
        'cooldown: {kind: train, for_each: {budget: [1, 2]}, filter: "{{ budget < 2 or lr < 1e-3 }}",',
    )
    sweep = load_sweep_text(text, "s.yaml")
    stages = [{job.stage for job in sweep.jobs(point, load_cluster("local"))} for point in sweep.points]
    assert stages[1] - stages[0] == {"cooldown_2", "cooldown_2.convert"}


BRANCHES = """
point: p
params: {budget: 0}
megatron: {lr: 1e-3, save_interval: 2}
stages:
  pretrain: {kind: train, megatron: {train_iters: 20}}
  cooldown:
    kind: train
    parent: pretrain
    for_each: {budget: [{name: short, at: 8, lr: 1e-4}, {name: long, at: 12, lr: 1e-5}]}
    start: {checkpoint: "{{ at }}"}
    megatron: {train_iters: "{{ at + 4 }}"}
  tail:
    kind: train
    parent: cooldown
    for_each: {more: [2, 4]}
    megatron: {train_iters: "{{ at + 4 + more }}"}
  note: {kind: command, parent: tail, filter: "{{ more < 4 }}", command: [echo, "{{ budget }} {{ at }} {{ more }}"]}
"""


def test_stages_read_the_values_for_which_the_stages_before_them_are_repeated() -> None:
    jobs = {job.stage: job for job in jobs_of(BRANCHES)}
    tails = {name: job for name, job in jobs.items() if job.iteration in (12, 16) and "tail" in name}
    assert {name: job.params["train_iters"] for name, job in tails.items() if job.kind == "train"} == {
        "cooldown_short_tail_2": 14,
        "cooldown_short_tail_4": 16,
        "cooldown_long_tail_2": 18,
        "cooldown_long_tail_4": 20,
    }
    assert {name: job.command for name, job in jobs.items() if job.command} == {
        "cooldown_short_tail_2.note": ("echo", "short 8 2"),
        "cooldown_long_tail_2.note": ("echo", "long 12 2"),
    }
    # an argument among the values is one of the repeated stage only, unless an expression reads it
    assert {jobs[name].params["lr"] for name in tails} == {1e-3}
    assert jobs["cooldown_long"].params["lr"] == 1e-5


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"pretrain: {": 'pretrain: {filter: "{{ lr > 1 }}", '},
            r"s.yaml:7:.*the filters of the stages leave none at point lr0.001 \(drop the point: sweep: {filter: …}\)",
        ),
        (
            {"pretrain: {": "pretrain: {filter: \"{{ 'no' }}\", "},
            r"s.yaml:8:.*stage pretrain at point lr0.001: filter .* gives text \('no'\), not true or false",
        ),
        (
            {"cooldown: {": 'cooldown: {filter: "{{ size == 1 }}", '},
            r"s.yaml:9:.*stage cooldown at point lr0.001: '{{ size == 1 }}' uses 'size', which is not defined",
        ),
        (
            {
                "cooldown: {": 'cooldown: {filter: "{{ lr < 1e-3 }}", ',
                "parent: [pretrain, cooldown]": "parent: pretrain, start: {finished: cooldown}",
            },
            "s.yaml:10:.*there is no stage 'cooldown' at this point",
        ),
    ],
)
def test_wrong_filters_of_stages(changes: dict[str, str], told: str) -> None:
    text = NAMED
    for old, new in changes.items():
        text = text.replace(old, new)
    sweep = load_sweep_text(text, "s.yaml")
    with pytest.raises(SpecError, match=told):
        sweep.jobs(sweep.points[0], load_cluster("local"))


@pytest.mark.parametrize("source", ["stages.cooldown.run_dir", "stages['cooldown'].run_dir"])
def test_a_later_stage_is_not_known(source: str) -> None:
    text = f"""\
point: p
params: {{branch: "{{{{ {source} }}}}"}}
stages:
  pretrain: {{kind: command, command: [x, "{{{{ branch }}}}"]}}
  cooldown: {{kind: command, parent: pretrain, command: [x]}}
"""
    sweep = load_sweep_text(text, "s.yaml")
    with pytest.raises(SpecError) as error:
        sweep.jobs(sweep.points[0], load_cluster("local"))
    assert str(error.value).startswith("s.yaml:2:")
    assert "cooldown does not run before pretrain; only earlier stages are known" in str(error.value)
    assert "there is no entry" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("time: 1h", "time: \"{{ file_value('/t') }}\"", "s.yaml:5:9: stage pretrain at point lr0.001: "),
        ("checkpoint: 50", 'checkpoint: "{{ n }}"', "s.yaml:9:53: stage cooldown at point lr0.001: "),
        ("lr{{ lr }}", "{{ file_value('/t') }}", "s.yaml:2:1: "),
        (
            "stages:",
            "env: {A: \"{{ file_value('/t') }}\"}\nstages:",
            "s.yaml:7:7: stage pretrain at point lr0.001: ",
        ),
    ],
)
def test_what_is_read_from_a_file_is_known_only_to_the_job(old: str, new: str, told: str) -> None:
    text = NAMED.replace(old, new).replace("nodes: 2", "nodes: 2, n: \"{{ file_value('/n') }}\"")
    with pytest.raises(SpecError) as error:
        jobs_of(text)
    (problem,) = error.value.problems
    assert str(problem).startswith(told)
    assert "so only Megatron arguments and words of command can be read from files" in str(problem)


@pytest.mark.parametrize("name", ["lr", "half"])
def test_a_stage_of_the_whole_sweep_has_no_swept_values(name: str) -> None:
    prepare = f"stages:\n  prepare: {{kind: command, scope: sweep, command: [a, '{{{{ {name} }}}}']}}"
    text = NAMED.replace("stages:", prepare).replace("nodes: 2", "nodes: 2, half: '{{ lr / 2 }}'")
    with pytest.raises(SpecError) as error:
        jobs_of(text)
    (problem,) = error.value.problems
    assert "uses 'lr', which is not defined: prepare runs once for all points (scope: sweep), so" in str(
        problem
    )
    assert problem.line == (8 if name == "lr" else 3)


def test_a_misspelt_name_in_such_a_stage() -> None:
    prepare = "stages:\n  prepare: {kind: command, scope: sweep, command: [a, '{{ node }}']}"
    with pytest.raises(SpecError, match=r"uses 'node', which is not defined; did you mean '?nodes"):
        jobs_of(NAMED.replace("stages:", prepare))
