"""Plans of complete sweeps: their content, changes of their digest, and checks."""

from __future__ import annotations

import dataclasses
import json
import shutil
from typing import TYPE_CHECKING

import pytest
from example_specs import CHAIN, MODEL, spec_text

from airflow_megatron.plan.job_scripts import job_digest
from airflow_megatron.plan.pinned import point_digest
from airflow_megatron.plan.point_choice import choose_points
from airflow_megatron.plan.sweep_plan import check_sweep, plan_point, plan_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import HOME_VARIABLE, project_root, sweep_specs_dir
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.jobs import Job
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile


def planned(text: str, cluster: ClusterProfile) -> Plan:
    return check_sweep(load_sweep_text(text, "s.yaml"), cluster)


def expected_message(text: str, cluster: ClusterProfile) -> str:
    with pytest.raises(SpecError) as caught:
        planned(text, cluster)
    return str(caught.value)


class TestPlan:
    @pytest.fixture
    def plan(self, cluster: ClusterProfile) -> Plan:
        return planned(CHAIN, cluster)

    def test_keys_of_the_json(self, plan: Plan) -> None:
        shown = json.loads(json.dumps(plan.to_json()))
        assert set(shown) >= {"sweep", "digest", "cluster", "points", "jobs"}
        assert (shown["sweep"], shown["cluster"], shown["points"]) == ("chain", "alps", 2)
        assert len(shown["jobs"]) == 19
        assert all(
            set(row)
            >= {
                "name",
                "point",
                "stage",
                "kind",
                "branch",
                "params",
                "sweep_params",
                "depends_on",
                "run_dir",
                "command",
            }
            for row in shown["jobs"]
        )

    def test_shared_jobs_come_once_and_first(self, plan: Plan) -> None:
        assert [job.name for job in plan.jobs if not job.point] == ["chain.prepare"]
        assert plan.jobs[0].name == "chain.prepare"
        for point in plan.points:
            assert [job.point for job in plan.jobs_of(point)] == ["", *[point] * 9]

    def test_jobs_by_name(self, plan: Plan) -> None:
        assert plan.job("chain.lr0.001.pretrain").stage == "pretrain"
        with pytest.raises(KeyError, match=r"did you mean 'chain\.lr0\.001\.pretrain'"):
            plan.job("chain.lr0.001.pretrian")

    def test_commands(self, plan: Plan) -> None:
        cooldown = plan.job("chain.lr0.004.cooldown_300k")
        words = list(cooldown.command)
        assert words[:2] == ["/opt/venv/bin/python", "/opt/Megatron-LM/pretrain_gpt.py"]
        assert words[words.index("--lr") + 1] == "0.004"
        assert words[words.index("--train-iters") + 1] == "150"
        assert words[words.index("--save") + 1] == f"{cooldown.run_dir}/checkpoints"
        assert "--exit-signal-handler" in words
        assert not {"--budget", "--tokenizer", "--tasks"} & set(words)
        evaluate = plan.job("chain.lr0.004.cooldown_300k.evaluate")
        assert f"{cooldown.run_dir}/converted_hf/iter_150" in evaluate.command
        assert evaluate.outputs == (f"{cooldown.run_dir}/eval_results/iter_150/results.json",)
        assert plan.jobs[0].command == (
            "/opt/venv/bin/python",
            "prepare.py",
            "--output",
            "/scratch/runs/chain/_shared/prepare/data",
        )

    def test_the_points_of_a_plan_are_planned_alike_alone(self, plan: Plan, cluster: ClusterProfile) -> None:
        sweep = load_sweep_text(CHAIN, "s.yaml")
        assert plan_point(sweep, sweep.point("lr0.004"), cluster) == plan.jobs_of("lr0.004")
        assert plan_sweep(sweep, cluster, [sweep.point("lr0.004")]).points == ("lr0.004",)


class TestDigests:
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("name: chain\n", "# a remark\nname: chain\n"),
            ("1e-3", "0.001"),
            ("train_iters: 300, save_interval: 10", "save_interval: 10, train_iters: 300"),
        ],
    )
    def test_equal_sweeps_have_equal_digests(self, old: str, new: str, cluster: ClusterProfile) -> None:
        assert planned(CHAIN.replace(old, new), cluster).digest == planned(CHAIN, cluster).digest

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("4e-3", "5e-3"),
            ("name: chain", "name: chains"),
            ("save_interval: 10", "save_interval: 5"),
            ("[heldout]", "[other]"),
            ("manifest.json", "index.json"),
            ("kind: train\n    parent: prepare", "kind: train\n    slurm: {time: 1h}\n    parent: prepare"),
            ("prepare.py", "prepare2.py"),
            ("train_iters - 20", "train_iters - 30"),
        ],
    )
    def test_every_change_changes_it(self, old: str, new: str, cluster: ClusterProfile) -> None:
        assert old in CHAIN
        assert planned(CHAIN.replace(old, new), cluster).digest != planned(CHAIN, cluster).digest

    def test_a_job_keeps_its_digest_when_only_resources_change(self, cluster: ClusterProfile) -> None:
        bigger = CHAIN.replace(
            "kind: train\n    parent: prepare", "kind: train\n    slurm: {time: 1h}\n    parent: prepare"
        )
        before = {job.name: job_digest(job) for job in planned(CHAIN, cluster).jobs}
        assert {job.name: job_digest(job) for job in planned(bigger, cluster).jobs} == before

    def test_only_what_a_change_reaches_runs_again(self, cluster: ClusterProfile) -> None:
        before, after = (planned(text, cluster) for text in (CHAIN, CHAIN.replace("- 20", "- 30")))
        changed = {
            job.stage
            for job, other in zip(before.jobs, after.jobs, strict=True)
            if job_digest(job) != job_digest(other)
        }
        assert changed == {"cooldown_300k", "cooldown_600k"}
        assert point_digest(before.jobs_of("lr0.001")) != point_digest(after.jobs_of("lr0.001"))


class TestCheck:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                spec_text(point="p", more="megatron:\n  learning_rate: 1\n  num_layer: 2"),
                "s.yaml:5:3: core_v0.16.1 has no argument 'num_layer' (did you mean num_layers",
            ),
            (
                CHAIN.replace("save_interval: 10", "save-interval: 10"),
                "s.yaml:18:34: the argument 'save-interval' is written with dashes (write save_interval)",
            ),
            (
                spec_text("--lr: [1]", point="p"),
                "s.yaml:4:3: the argument '--lr' is written with dashes (write lr)",
            ),
            (
                spec_text(point="p", more="megatron:\n  context_parallel_size: 2"),
                "the trainer megatron_core does not accept core_v0.16.1's argument 'context_parallel_size' (remove it",
            ),
            (
                spec_text(point="p", more="megatron:\n  batch_size: 4"),
                "does not accept core_v0.16.1's argument 'batch_size' (did you mean micro_batch_size or ",
            ),
            (
                spec_text(point="p", more="megatron:\n  recompute_activation: true"),
                "has no argument 'recompute_activation' (did you mean recompute_activations",
            ),
            (
                spec_text(point="p", more="megatron:\n  nodes: 2"),
                "argument 'nodes' (write slurm: {nodes: …})",
            ),
            (
                spec_text(point="p", more="megatron:\n  cluster: x"),
                "argument 'cluster' (write it at the top level)",
            ),
            (
                spec_text(point="p", more="extra_arguments:\n  lr: {type: float}"),
                "s.yaml:4:3: lr: megatron_core has this argument; drop the declaration",
            ),
            (
                spec_text(point="p", more="megatron:\n  my_own: 1"),
                "s.yaml:4:3: core_v0.16.1 has no argument 'my_own' (write your own variables under params:)",
            ),
            (
                CHAIN.replace("save_interval: 10", "save_intervall: 10"),
                "s.yaml:18:34: core_v0.16.1 has no argument 'save_intervall' (did you mean save_interval",
            ),
            (
                spec_text("lr: [1]\nseeed: [1]", point="p{{ lr }}"),
                "s.yaml:5:3: nothing reads the swept value 'seeed': it is not an argument of core_v0.16.1",
            ),
            (
                spec_text("group: [{params: {lr: [1, 2]}}]", point="p"),
                "it is not an argument of core_v0.16.1 and in no expression (did you mean 'groups'?)",
            ),
            (
                spec_text("size: [1, 2]", point="p_${size}"),
                "(write {{ size }} instead of ${size} in point)",
            ),
            (
                spec_text("size: [1, 2]", point="p_{size}"),
                "(write {{ size }} instead of {size} in point)",
            ),
            (
                spec_text("groups: [{params: {lr: 1e-4, 3e-4}}]", point="p"),
                "core_v0.16.1 and in no expression (write several values in brackets: [3e-4, …])",
            ),
            (
                spec_text(point="p", more="megatron: {lr: 1e-4, 3e-4}"),
                "core_v0.16.1 has no argument '3e-4' (write several values in brackets: [3e-4, …])",
            ),
            (
                spec_text("groups: [{configs: [{num_layer: 1}]}]", point="p"),
                "s.yaml:4:24: nothing reads the swept value 'num_layer'",
            ),
            (
                spec_text("lr: [1]\npretrian.lr: [1]", point="p{{ lr }}"),
                "s.yaml:5:3: 'pretrian.lr' names a stage 'pretrian', which does not exist (did you mean 'pretrain'?)",
            ),
            (
                spec_text(point="p", stages="stages: {pretrain: {kind: train}}"),
                "stage pretrain has no train_iters; add megatron: {train_iters: …}",
            ),
            (
                CHAIN.replace("tokenizer: /data/tokenizer, ", ""),
                "stage pretrain.convert (convert) needs tokenizer; add params: {tokenizer: …}",
            ),
            (
                CHAIN.replace("tasks: [heldout]", "tasks: null"),
                "s.yaml:3:62: stage pretrain.evaluate (evaluate) needs tasks",
            ),
            (
                spec_text(point="p", more="megatron:\n  lr: fast"),
                "s.yaml:4:3: lr: must be a number, not 'fast'",
            ),
            (
                spec_text(point="p", more="megatron:\n  seq_length: 2,048"),
                "s.yaml:4:3: seq_length: must be an integer, not '2,048' (write 2048)",
            ),
            (spec_text(point="p", more="megatron: {bf16: 1}"), "bf16: is a flag: write true or false, not 1"),
            (
                spec_text(point="p", more="megatron: {lr_decay_style: WDS}"),
                "lr_decay_style: cannot be 'WDS'; allowed are ",
            ),
            (
                spec_text("lr: [1, x]", point="p{{ lr }}"),
                "s.yaml:4:3: lr: must be a number, not 'x'",
            ),
            (
                spec_text(point="p", more="release: core_v9"),
                "s.yaml:3:1: core_v9: no such release; known are ",
            ),
            (
                spec_text(point="p", more="trainer: megatron_lm"),
                "s.yaml:3:1: cluster alps has no checkout of Megatron-LM core_v0.16.1; set trainers: ",
            ),
            (
                spec_text(
                    point="p", stages="stages: {a: {kind: command, command: [x], template: no.sbatch.j2}}"
                ),
                "there is no sbatch template no.sbatch.j2",
            ),
            (
                spec_text(point="p", more='slurm: {options: ["--comment=a\\nrm -rf /"]}'),
                "holds a control character; an #SBATCH line cannot",
            ),
            (
                spec_text(point="p", more="env: {A-B: 1}"),
                "'A-B' cannot be the name of an environment variable",
            ),
            (spec_text(point="p", more='env: {A: "\\0"}'), "NUL"),
            (
                spec_text(point="p", more="env: {SLURM_JOB_ID: 5}"),
                "env.SLURM_JOB_ID: Slurm sets it in each job",
            ),
            (spec_text(point="p", more="env: {UID: 5}"), "env.UID: bash sets it in each job"),
            (spec_text(point="p", more="env: {PATH: /x}"), "env.PATH: /usr/bin, where the job script's"),
        ],
    )
    def test_what_is_refused(self, text: str, message: str, cluster: ClusterProfile) -> None:
        assert message in expected_message(text, cluster)

    def test_all_unknown_names_are_reported_together(self, cluster: ClusterProfile) -> None:
        text = spec_text("aa: [1]\nbb: [2]", point="p", more="megatron: {cc: 1, dd: 2}")
        assert len(expected_message(text, cluster).splitlines()) == 4

    def test_arguments_that_the_spec_declares(self, cluster: ClusterProfile) -> None:
        more = "extra_arguments: {our_scale: {type: float}}\nmegatron: {our_scale: 2, lr_finder: true}"
        (job,) = planned(spec_text(point="p", more=more), cluster).jobs
        assert job.command[job.command.index("--our-scale") + 1] == "2"
        assert "--lr-finder" in job.command
        assert Job.from_json(json.loads(json.dumps(job.to_json()))) == job

    @pytest.mark.slow
    def test_own_variables_are_not_arguments(self, cluster: ClusterProfile) -> None:
        arguments = {**MODEL, "save_interval": 10, "num_layers": "{{ layers }}"}
        text = spec_text(
            "seed: [1]\nlayers: [2]",
            point="p",
            more=f"params: {{seed: 3}}\nmegatron: {json.dumps(arguments)}",
        )
        (job,) = planned(text, cluster).jobs
        assert "--seed" not in job.command
        assert job.command[job.command.index("--num-layers") + 1] == "2"


class TestChoice:
    @pytest.mark.parametrize(
        ("choice", "limit", "names"),
        [
            ("", None, ["S_1", "S_2", "M_1", "M_2"]),
            ("  ", 3, ["S_1", "S_2", "M_1"]),
            ("S_*", None, ["S_1", "S_2"]),
            ("*_2, M_1", None, ["S_2", "M_1", "M_2"]),
            ("{{ lr < 2 }}", None, ["S_1", "M_1"]),
            ("{{ point == 'M_2' or (size == 'S' and double > 3) }}", None, ["S_2", "M_2"]),
            ("M_?", 1, ["M_1"]),
            ("", 0, ["S_1", "S_2", "M_1", "M_2"]),
        ],
    )
    def test_points(self, choice: str, limit: int | None, names: list[str]) -> None:
        text = spec_text(
            "size: [S, M]\nlr: [1, 2]", point="{{ size }}_{{ lr }}", more='params: {double: "{{ 2 * lr }}"}'
        )
        assert [
            point.name for point in choose_points(load_sweep_text(text, "s.yaml"), choice, limit)
        ] == names

    @pytest.mark.parametrize(
        ("choice", "message"),
        [
            ("L_*", "no point matches 'L_*' (points: S_1, "),
            ("S_1,L_*", "no point matches 'L_*'"),
            ("S_1,M_11", "no point matches 'M_11' (did you mean 'M_1'?)"),
            (",", "no point matches ','"),
            ("{{ lr > 9 }}", "no point matches '{{ lr > 9 }}' (points: "),
            ("lr > 9", "no point matches 'lr > 9' (write an expression as \"{{ lr > 9 }}\")"),
            ("lr==9", "no point matches 'lr==9' (write an expression as \"{{ lr==9 }}\")"),
            ("lr>", "no point matches 'lr>' (write a condition as \"{{ lr < 1e-2 and seed == 1 }}\")"),
            ("lr > 9 or", 'write a condition as "{{ lr < 1e-2 and seed == 1 }}"'),
            ("S-1", "no point matches 'S-1' (did you mean 'S_1'?)"),
            ("{{ size }}", "choosing points: '{{ size }}' gives text ('S'), not true or false"),
            ("{{ rl > 9 }}", "choosing points: '{{ rl > 9 }}' uses 'rl', which is not defined"),
            ("{{ ''.__class__ }}", "choosing points: "),
        ],
    )
    def test_refused(self, choice: str, message: str) -> None:
        text = spec_text("size: [S, M]\nlr: [1, 2]", point="{{ size }}_{{ lr }}")
        with pytest.raises(SpecError) as caught:
            choose_points(load_sweep_text(text, "s.yaml"), choice)
        assert message in str(caught.value)

    def test_a_value_of_one_stage(self) -> None:
        text = CHAIN.replace("lr: [1e-3, 4e-3]", "lr: [1]\n  cooldown.lr: [2, 3]").replace(
            "{{ lr }}", "{{ cooldown.lr }}"
        )
        chosen = choose_points(load_sweep_text(text, "s.yaml"), "{{ cooldown.lr > 2 }}")
        assert [point.name for point in chosen] == ["lr3"]


@pytest.mark.slow
def test_signatures_of_the_site_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(project_root() / "sbatch", tmp_path / "sbatch")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    clusters = tmp_path / "sbatch" / "clusters"
    profile = clusters / "local.yaml"
    profile.write_text(f"{profile.read_text()}\nsignatures: [own.yaml]\n")
    entry = "signatures:\n  - name: fabric\n    pattern: fabric down\n    outcome: retryable\n"
    (clusters / "own.yaml").write_text(entry)
    sweep = load_sweep_text(CHAIN, "s.yaml")
    with pytest.raises(SpecError) as caught:
        check_sweep(sweep, load_cluster("local"))
    assert str(caught.value).startswith(f"{clusters}/own.yaml:2:")
    assert "'reason' has to be text" in str(caught.value)
    (clusters / "own.yaml").write_text(f"{entry}    reason: the fabric failed\n")
    assert check_sweep(sweep, load_cluster("local")).jobs


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["decays", "quickstart", "parallelism_gpt2_large"])
def test_the_text_that_is_written_job_by_job_is_the_whole_plan(spec: str) -> None:
    plan = check_sweep(load_sweep(sweep_specs_dir() / f"{spec}.yaml"))
    text = b"".join(plan.json_text()).decode()
    assert json.loads(text) == plan.to_json()
    lines = [line.removesuffix(",") for line in text.splitlines() if line.startswith("    {")]
    assert [json.loads(line) for line in lines] == plan.to_json()["jobs"]
    empty = dataclasses.replace(plan, jobs=())
    assert json.loads(b"".join(empty.json_text())) == empty.to_json()
