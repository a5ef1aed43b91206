"""Points and jobs of a loaded sweep: names, directories, values, resources, and dependencies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from example_specs import CHAIN, spec_text

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.model.jobs import Dependency, Job
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text, spec_files

if TYPE_CHECKING:
    from pathlib import Path


def jobs_of(text: str, cluster: ClusterProfile, point: str | None = None) -> dict[str, Job]:
    sweep = load_sweep_text(text, "s.yaml")
    chosen = sweep.point(point) if point else sweep.points[0]
    return {job.stage: job for job in sweep.jobs(chosen, cluster)}


def told(text: str, cluster: ClusterProfile) -> str:
    with pytest.raises(SpecError) as caught:
        jobs_of(text, cluster)
    return str(caught.value)


class TestChain:
    @pytest.fixture
    def jobs(self, cluster: ClusterProfile) -> dict[str, Job]:
        return jobs_of(CHAIN, cluster, "lr0.004")

    def test_names_are_unique_in_the_sweep(self, cluster: ClusterProfile) -> None:
        sweep = load_sweep_text(CHAIN, "s.yaml")
        names = [job.name for point in sweep.points for job in sweep.jobs(point, cluster) if job.point]
        assert len(names) == len(set(names)) == 18
        assert "chain.lr0.001.cooldown_300k.convert" in names

    def test_directories(self, jobs: dict[str, Job]) -> None:
        root = "/scratch/runs/chain"
        point = f"{root}/lr0.004"
        assert {stage: job.run_dir for stage, job in jobs.items()} == {
            "prepare": f"{root}/_shared/prepare",
            "pretrain": point,
            "cooldown_300k": f"{point}/cooldown_s300k",
            "cooldown_600k": f"{point}/cooldown_s600k",
            "pretrain.convert": point,
            "cooldown_300k.convert": f"{point}/cooldown_s300k",
            "cooldown_600k.convert": f"{point}/cooldown_s600k",
            "pretrain.evaluate": point,
            "cooldown_300k.evaluate": f"{point}/cooldown_s300k",
            "cooldown_600k.evaluate": f"{point}/cooldown_s600k",
        }
        assert len({job.stage_dir for job in jobs.values()}) == len(jobs)
        assert jobs["pretrain.convert"].stage_dir == f"{point}/.jobs/pretrain.convert"
        assert jobs["pretrain"].log_file(2) == f"{point}/logs/pretrain-2.out"
        assert jobs["cooldown_600k"].parent_dir == point
        assert jobs["prepare"].outputs == (f"{root}/_shared/prepare/data/manifest.json",)

    def test_values_keep_their_types(self, jobs: dict[str, Job]) -> None:
        assert jobs["pretrain"].params["lr"] == 4e-3
        assert jobs["cooldown_600k"].params["train_iters"] == 300
        assert jobs["cooldown_300k"].params["train_iters"] == 150
        assert type(jobs["cooldown_300k"].params["train_iters"]) is int
        assert jobs["pretrain"].swept == ("lr",)
        assert jobs["prepare"].swept == ()

    def test_each_iteration_is_the_branchs_last(self, jobs: dict[str, Job]) -> None:
        assert jobs["pretrain.evaluate"].iteration == 300
        assert jobs["cooldown_300k.convert"].iteration == 150
        assert jobs["cooldown_300k.evaluate"].iteration == 150
        assert jobs["cooldown_300k"].iteration == 130

    def test_dependencies(self, jobs: dict[str, Job]) -> None:
        assert jobs["prepare"].depends_on == ()
        assert [item.to_plan() for item in jobs["cooldown_600k"].depends_on] == [
            {"job": "chain.lr0.004.pretrain", "until": "checkpoint 280"}
        ]
        assert [item.to_plan() for item in jobs["pretrain"].depends_on] == [
            {"job": "chain.prepare", "until": "finished"}
        ]

    def test_jobs_read_back_from_json(self, jobs: dict[str, Job]) -> None:
        for job in jobs.values():
            assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job


def test_jobs_with_everything_read_back_from_json(cluster: ClusterProfile) -> None:
    jobs = jobs_of(
        """\
name: full
point: p
env: {A: 1, B: "{{ run_dir }}"}
slurm: {nodes: "{{ 2 }}", gpus_per_node: 4, time: 1h, mem: 64G, options: [--requeue], signal_before: 5m}
restart: {failed: 2, rolled_over: null, backoff: 1m}
megatron: {train_iters: 10, data_path: [0.3, a, 0.7, b], swiglu: true, lr: 1e-3, min_lr: null}
stages:
  pretrain: {kind: train, template: train.sbatch.j2}
  after: {kind: command, parent: pretrain, command: [echo, 1, 2.5], start: {log: "iteration +5/"}}
""",
        cluster,
    )
    for job in jobs.values():
        assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job
    assert jobs["pretrain"].env == {"A": "1", "B": "/scratch/runs/full/p"}
    assert (jobs["pretrain"].slurm.nodes, jobs["pretrain"].slurm.time) == (2, 3600)
    assert jobs["pretrain.after"].command == ("echo", "1", "2.5")
    assert jobs["pretrain.after"].depends_on == (
        Dependency("full.p.pretrain", "pretrain", "log", pattern="iteration +5/"),
    )
    assert jobs["pretrain.after"].depends_on[0].to_plan()["until"] == "log iteration +5/"


def test_a_key_of_one_stage_is_swept_for_that_stage_only(cluster: ClusterProfile) -> None:
    text = spec_text(
        "lr: [1e-3]\ncooldown.lr: [1e-4, 2e-4]",
        point="{{ lr }}_{{ cooldown.lr }}",
        stages="""
        stages:
          pretrain: {kind: train, megatron: {train_iters: 9}}
          cooldown: {kind: train, parent: pretrain, megatron: {train_iters: 12}}
        """,
    )
    sweep = load_sweep_text(text, "s.yaml")
    assert [point.name for point in sweep.points] == ["0.001_0.0001", "0.001_0.0002"]
    jobs = {job.stage: job for job in sweep.jobs(sweep.points[1], cluster)}
    assert (jobs["pretrain"].params["lr"], jobs["cooldown"].params["lr"]) == (1e-3, 2e-4)
    assert jobs["pretrain"].swept == jobs["cooldown"].swept == ("lr",)


def test_resources_are_merged_from_cluster_spec_and_stage(cluster: ClusterProfile) -> None:
    slurm = {"partition": "gpu", "nodes": 2, "options": ["--exclusive"]}
    profile = ClusterProfile.model_validate({**cluster.model_dump(exclude_unset=True), "slurm": slurm})
    text = spec_text(
        point="p",
        more="slurm: {nodes: 4, options: [--requeue]}\nmegatron: {train_iters: 5}",
        stages="""
        stages:
          pretrain: {kind: train, slurm: {gpus_per_node: 8}, params: {world: "{{ nodes * gpus_per_node }}"}}
          small: {kind: command, command: [x], slurm: {nodes: 1}}
        """,
    )
    jobs = jobs_of(text, profile)
    assert jobs["pretrain"].params["world"] == 32
    assert jobs["pretrain"].slurm.partition == "gpu"
    assert jobs["pretrain"].slurm.options == ["--exclusive", "--requeue"]
    assert jobs["small"].slurm.nodes == 1


def test_stages_read_each_other(cluster: ClusterProfile) -> None:
    text = spec_text(
        point="p",
        stages="""
        stages:
          a: {kind: command, command: [x]}
          b: {kind: train, parent: a, megatron: {train_iters: 50}}
          c:
            kind: command
            parent: b
            command:
              ["{{ stages.a.run_dir }}", "{{ parent.checkpoint_dir }}", "{{ parent.iteration }}", "{{ job_name }}"]
        """,
    )
    root = "/scratch/runs/example/p"
    assert jobs_of(text, cluster)["b.c"].command == (
        f"{root}/a",
        f"{root}/checkpoints",
        "50",
        "example.p.b.c",
    )


def test_the_sweeps_own_stage_is_the_same_at_every_point(cluster: ClusterProfile) -> None:
    sweep = load_sweep_text(CHAIN, "s.yaml")
    shared = sweep.shared_jobs(cluster)
    assert [job.name for job in shared] == ["chain.prepare"]
    for point in sweep.points:
        assert sweep.jobs(point, cluster)[0] == shared[0]


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("start: {checkpoint: '{{ train_iters / 2 }}'}", "start.checkpoint is 5.0, not an iteration"),
        ("start: {checkpoint: 0}", "start.checkpoint is 0, not an iteration"),
        ("start: {checkpoint: '{{ lr > 0 }}'}", "start.checkpoint is true, not an iteration"),
        ("run_dir: ../other", "run_dir '../other' must stay inside the point's directory"),
        ("run_dir: ./b/../../x", "s.yaml:11:5: stage b at point p: run_dir './b/../../x' must stay inside"),
        (
            "run_dir: checkpoints",
            "s.yaml:11:5: stage 'b' works in checkpoints/, where 'pretrain' keeps its files (give it another",
        ),
        ("run_dir: logs/deep", "stage 'b' works in logs/, where 'pretrain' keeps its files"),
        (
            "outputs: [a.txt, ../../x]",
            "s.yaml:11:22: stage b at point p: outputs: '../../x' is not below the run directory; a file elsewhere",
        ),
        ("outputs: ['']", "outputs: a path is empty"),
        ('outputs: ["a\\nb"]', "holds a control character"),
        ("run_dir: /tmp", "run_dir '/tmp' must stay inside the point's directory"),
        (
            "run_dir: '.'",
            "stages 'pretrain' and 'b' share the run directory /scratch/runs/example/p (give each its own",
        ),
        ("slurm: {nodes: '{{ lr }}'}", "slurm.nodes is 1.5, not a whole number"),
        ("slurm: {nodes: 0}", "stages.b.slurm.nodes is 0 (expected greater than or equal to 1"),
        (f"slurm: {{nodes: {10**400}}}", "s.yaml:11:13: stage b at point p: slurm.nodes is 1000"),
        ("slurm: {gpus_per_node: '{{ 10**400 }}'}", "input should be less than or equal to 4294967293"),
        ("slurm: {nodes: '{{ 0 * lr }}'}", "slurm.nodes is 0.0, not a whole number"),
        ("slurm: {cpus_per_task: '{{ int(0 * lr) }}'}", "slurm.cpus_per_task is 0"),
        (
            "slurm: {time: \"{{ 'soon' }}\"}",
            "slurm.time: 'soon' is not a duration; write 30m, 6h or 06:00:00",
        ),
        (
            "env: {A: '{{ nothing }}'}",
            "stage b at point p: '{{ nothing }}' uses 'nothing', which is not defined",
        ),
        ("params: {x: '{{ y }}', y: '{{ x }}'}", "reference cycle"),
    ],
)
def test_wrong_stages(stage: str, message: str, cluster: ClusterProfile) -> None:
    text = spec_text(
        point="p",
        more="megatron: {lr: 1.5}",
        stages=f"""
        stages:
          pretrain: {{kind: train, megatron: {{train_iters: 100}}}}
          b:
            kind: train
            parent: pretrain
            megatron: {{train_iters: 10}}
            {stage}
        """,
    )
    assert message in told(text, cluster)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("4k", "s.yaml:4:3: stage pretrain at point p: train_iters is '4k', not a whole number (write 4000)"),
        ("", "s.yaml:4:3: stage pretrain at point p: train_iters is empty, not a whole number"),
        (
            "'{{ train_iters }}'",
            "s.yaml:4:3: stage pretrain at point p: reference cycle: train_iters → train_iters",
        ),
    ],
)
def test_a_wrong_value_is_placed_at_the_parameter(value: str, message: str, cluster: ClusterProfile) -> None:
    text = spec_text(
        point="p",
        more=f"megatron:\n  train_iters: {value}",
        stages="""
        stages:
          pretrain: {kind: train}
          convert: {kind: convert, parent: pretrain, params: {tokenizer: /t}}
        """,
    )
    assert told(text, cluster).startswith(message)


def test_an_unknown_name_in_a_directory_has_a_hint(cluster: ClusterProfile) -> None:
    text = spec_text(
        point="p",
        more="params: {budget: 3}",
        stages="""
        stages:
          pretrain: {kind: train, run_dir: "{{ budgt }}"}
        """,
    )
    assert "'budgt', which is not defined; did you mean 'budget'?" in told(text, cluster)


@pytest.mark.parametrize("other", ["x", "./x/", "x//.", "'{{ \"x\" }}/'"])
def test_two_names_of_one_directory(other: str, cluster: ClusterProfile) -> None:
    text = spec_text(
        point="p",
        stages=f"""
        stages:
          a: {{kind: train, run_dir: x, megatron: {{train_iters: 100}}}}
          b:
            kind: train
            run_dir: {other}
            megatron: {{train_iters: 10}}
        """,
    )
    message = "s.yaml:8:5: stages 'a' and 'b' share the run directory /scratch/runs/example/p/x (give"
    assert told(text, cluster).startswith(message)


def test_an_output_has_one_name(cluster: ClusterProfile) -> None:
    stages = "stages: {a: {kind: command, command: [x], outputs: [./b/../c.txt, /d//e]}}"
    assert jobs_of(spec_text(point="p", stages=stages), cluster)["a"].outputs == (
        "/scratch/runs/example/p/a/c.txt",
        "/d/e",
    )


def test_a_wrong_value_of_the_whole_sweep_is_shown_where_it_stands(cluster: ClusterProfile) -> None:
    text = spec_text(point="p", more='slurm:\n  nodes: "{{ 3 / 2 }}"')
    assert told(text, cluster).startswith("s.yaml:4:3: stage pretrain at point p: slurm.nodes is 1.5")


def test_a_failing_expression_is_shown_where_it_stands(cluster: ClusterProfile) -> None:
    text = spec_text(point="p", more='megatron:\n  lr: 1\n  min_lr: "{{ rl / 10 }}"\n')
    assert told(text, cluster).startswith(
        "s.yaml:5:3: stage pretrain at point p: min_lr: '{{ rl / 10 }}' uses 'rl'"
    )


def test_points_by_name() -> None:
    sweep = load_sweep_text(CHAIN, "s.yaml")
    assert sweep.point("lr0.004").values == {"lr": 4e-3}
    with pytest.raises(SpecError, match=r"the sweep has no point 'lr4' \(did you mean 'lr0\.004'\?\)"):
        sweep.point("lr4")


def test_names_of_points_that_are_paths_or_options_are_refused() -> None:
    for value in ("../x", "-rf", "a b", "", "x" * 200, "ü", "a\\nb"):
        text = spec_text(f'size: ["{value}"]', point="{{ size }}")
        with pytest.raises(SpecError, match="cannot be a point's name"):
            _ = load_sweep_text(text, "s.yaml").points


def test_spec_files_are_sorted_and_loaded(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "notes.txt"):
        (tmp_path / name).write_text(CHAIN.replace("name: chain\n", ""))
    found = spec_files(tmp_path)
    assert [path.name for path in found] == ["a.yml", "b.yaml"]
    assert [load_sweep(path).name for path in found] == ["a", "b"]


def test_a_hostile_value_stays_one_word(cluster: ClusterProfile) -> None:
    values: list[Any] = ["$(touch x)", "a b", "'; rm -rf /", "{{", "line\nbreak"]
    stage = {"kind": "command", "command": ["echo", *(f"{{{{ v{i} }}}}" for i in range(len(values)))]}
    spec = {
        "name": "x",
        "point": "p",
        "params": {f"v{i}": value for i, value in enumerate(values) if value != "{{"} | {"v3": "{{ '{{' }}"},
        "stages": {"run": stage},
    }
    assert jobs_of(json.dumps(spec), cluster)["run"].command == ("echo", *values)


@pytest.mark.parametrize("stage", ["kind: command, command: [x]", "kind: convert, parent: pretrain"])
def test_a_run_dir_without_effect(stage: str) -> None:
    stages = f"stages:\n  pretrain: {{kind: train}}\n  b: {{{stage}, run_dir: there}}\n"
    text = spec_text(point="p", stages=stages, more="megatron: {train_iters: 100}\nparams: {tokenizer: /t}")
    with pytest.raises(SpecError, match="run_dir has no effect in a stage of kind co"):
        load_sweep_text(text, "s.yaml")
