"""User-visible output of lint, plan, diff and schema: text, JSON, exit status, verbosity."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest
from command_line import Answer, runner

from airflow_megatron.cli.plans import spec_commands
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import BillingSection
from airflow_megatron.spec.native.json_schema import sweep_spec_schema
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SPEC = """\
name: small
point: "lr{{ lr }}"
params: {tokenizer: /data/tokenizer}
megatron: {train_iters: 100, save_interval: 20, lr_decay_style: cosine, seq_length: 128, micro_batch_size: 1,
  num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,
  mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100}
slurm: {nodes: 2, gpus_per_node: 4, time: 6h}
sweep:
  lr: [1e-3, 2e-3, 4e-3]
stages:
  pretrain:
    kind: train
    cancel: {log: "loss: nan"}
    events:
      - {log: "CUDA error", do: restart}
  cooldown:
    kind: train
    parent: pretrain
    for_each: {budget: [40, 60]}
    start: {checkpoint: "{{ budget }}"}
    megatron: {override_opt_param_scheduler: true}
  convert:
    kind: convert
    parent: pretrain
    each_checkpoint: {from_iteration: 20}
  evaluate:
    kind: command
    parent: cooldown
    command: [echo, done]
    start: {finished: pretrain, file: "checkpoints/*"}
"""
ODD = SPEC.replace("lr_decay_style: cosine", "lr_decay_style: cosine, lr_decay_iters: 90")
BAD = SPEC.replace('checkpoint: "{{ budget }}"', 'checkpoint: "{{ budget + 1 }}"')


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Answer]:
    """Return a function that runs the command line here, in a folder with three specs, 100 columns wide."""
    for name, text in (("small", SPEC), ("odd", ODD), ("bad", BAD)):
        (tmp_path / f"{name}.yaml").write_text(text.replace("name: small", f"name: {name}"))
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("AIRFLOW_MEGATRON_LOG_LEVEL", raising=False)
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)


def test_a_copy_that_still_has_its_old_name_shows_its_other_errors_too(
    call: Callable[..., Answer], tmp_path: Path
) -> None:
    (tmp_path / "copy.yaml").write_text(BAD.replace("train_iters: 100", "train_itters: 100"))
    answer = call("lint", "copy.yaml")
    assert answer.status == 1
    errors = answer.stdout.splitlines()
    assert "small.yaml defines a sweep 'small' too" in errors[0]
    assert "no argument 'train_itters' (did you mean train_iters?)" in errors[1]


class TestLint:
    @pytest.mark.slow
    def test_warnings_follow_errors(self, call: Callable[..., Answer], tmp_path: Path) -> None:
        (tmp_path / "other.yaml").write_text(
            "job: {name: x}\nbackend: {class_name: MegatronBackend, megatron: {num_layers: 2}}\n"
            "slurm: {sbatch: {nodes: 1}}\nsweep:\n  type: product\n  groups:\n"
            "    - params: {backend.megatron.train_iters: []}\n"
        )
        answer = call("lint", "other.yaml")
        first, *others = answer.stdout.splitlines()
        assert answer.status == 1
        assert "has no train_iters; add backend.megatron.train_iters: …" in first
        assert any("warning: backend.megatron.train_iters has no values" in line for line in others)
        rows = json.loads(call("lint", "other.yaml", "--format", "json").stdout)
        assert [row["severity"] for row in rows] == ["error", *["warning"] * len(others)]
        assert len(call("--quiet", "lint", "other.yaml").stdout.splitlines()) == 1

    @pytest.mark.slow
    def test_a_copy_with_the_same_name(self, call: Callable[..., Answer], tmp_path: Path) -> None:
        (tmp_path / "copy of small.yaml").write_text(SPEC)
        answer = call("lint", "copy of small.yaml")
        assert answer.status == 1
        assert "copy of small.yaml:1:1: small.yaml defines a sweep 'small' too" in answer.stdout
        for command in ("plan", "plan --format json"):
            refused = call(*command.split(), "copy of small.yaml")
            assert (refused.status, refused.stderr) == (1, answer.stdout), command
        assert call("plan", "copy of small.yaml", "--set", "name=other").status == 0

    @pytest.mark.slow
    def test_a_good_spec(self, call: Callable[..., Answer]) -> None:
        plan = check_sweep(load_sweep("small.yaml"))
        assert call("lint", "small.yaml") == Answer(
            0, f"small.yaml: 3 points, 18 jobs, digest {plan.digest}\n", ""
        )
        assert call("lint", "small.yaml", "--build-dags").status == 0

    @pytest.mark.slow
    def test_warnings_are_printed_and_no_failure(self, call: Callable[..., Answer]) -> None:
        answer = call("lint", "odd.yaml")
        assert answer.status == 0
        first, *_, last = answer.stdout.splitlines()
        assert first.startswith(
            "odd.yaml:4:73: warning: stage pretrain at point lr0.001: the last 10 of 100 iterations"
        )
        assert first.endswith("; the same at 2 more points and in 2 more stages (lr_decay_iters: 100)")
        assert last.startswith("odd.yaml: 3 points")

    @pytest.mark.slow
    def test_quiet_prints_errors_only(self, call: Callable[..., Answer]) -> None:
        assert call("lint", "--quiet", "odd.yaml", "small.yaml") == Answer(0, "", "")
        assert "needs checkpoint 41" in call("lint", "bad.yaml", "--quiet").stdout

    @pytest.mark.slow
    def test_json_for_editors(self, call: Callable[..., Answer]) -> None:
        answer = call("lint", "--format", "json", "odd.yaml", "bad.yaml", "none.yaml", "small.yaml")
        assert (answer.status, answer.stderr) == (1, "")
        rows = json.loads(answer.stdout)
        assert {tuple(row) for row in rows} == {("file", "line", "column", "severity", "message", "hint")}
        assert [(row["severity"], row["line"] > 0) for row in rows] == [
            ("warning", True),
            ("error", True),
            ("error", True),
            ("error", False),
        ]
        assert rows[1]["hint"] == "pretrain saves 40 and 60"
        assert json.loads(call("lint", "--format", "json", "small.yaml").stdout) == []

    def test_a_typo_in_an_override(self, call: Callable[..., Answer]) -> None:
        answer = call("lint", "small", "--set", "megatron.train_itres=7")
        assert answer.status == 1
        assert answer.stdout.startswith(
            "--set megatron.train_itres=7: core_v0.16.1 has no argument 'train_itres' (did you mean train_iters"
        )


class TestPlan:
    @pytest.mark.slow
    def test_values_of_stages_are_no_values_of_points(
        self, call: Callable[..., Answer], tmp_path: Path
    ) -> None:
        (tmp_path / "other.yaml").write_text(
            'job: {name: "x_${backend.megatron.lr}_${stage}"}\nstage: ""\n'
            "backend:\n  class_name: MegatronBackend\n  megatron: {num_layers: 2, hidden_size: 64,\n"
            "    num_attention_heads: 4, seq_length: 128, max_position_embeddings: 128, micro_batch_size: 1,\n"
            "    save_interval: 20, lr_decay_style: cosine, lr: 1, mock_data: true, vocab_size: 100,\n"
            "    tokenizer_type: NullTokenizer, override_opt_param_scheduler: true}\n"
            "slurm: {sbatch: {nodes: 1, gpus_per_node: 1}}\nsweep:\n  type: product\n  groups:\n"
            "    - params: {backend.megatron.lr: [1e-3, 2e-3]}\n    - configs:\n"
            "        - {stage: short, backend.megatron.train_iters: 100}\n"
            "        - type: list\n"
            '          defaults: {backend.megatron.load: "\\\\${sibling.short.job.base_output_dir}/checkpoints"}\n'
            "          configs:\n"
            "            - {stage: long, backend.megatron.train_iters: 200}\n"
            "            - {stage: long, backend.megatron.train_iters: 300}\n"
        )
        lines = call("plan", "other.yaml").stdout.splitlines()
        assert " point     lr      jobs " in lines
        assert any(line.split() == ["train_iters", "100,", "200,", "300"] for line in lines)

    def test_the_stage_tree(self, call: Callable[..., Answer]) -> None:
        answer = call("plan", "small", "--max-points-per-stage", "0")
        assert (answer.status, answer.stderr) == (0, "")
        lines = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
        assert lines[0] == "small on local"
        assert "lr     0.001, 0.002, 0.004" in lines
        tree = [line for line in lines if line.startswith(("pretrain", "├", "└", "│"))]
        assert [line.split()[:2] for line in tree] == [
            ["pretrain", "train"],
            ["├─", "cooldown_40"],
            ["│", "└─"],
            ["├─", "cooldown_60"],
            ["│", "└─"],
            ["└─", "convert"],
        ]
        assert "cancelled by: log loss: nan" in answer.stdout
        assert "on event 1: log CUDA error → restart" in answer.stdout
        assert "pretrain checkpoint 40" in answer.stdout
        assert "pretrain: each checkpoint from iteration 20" in answer.stdout
        assert "pretrain finished and file checkpoints/*" in answer.stdout
        assert "at most 864 GPU-hours" in answer.stdout
        assert all(len(line) <= 100 for line in answer.stdout.splitlines())

    @pytest.mark.slow
    def test_the_cost_in_units_of_the_site(
        self, call: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "core-hours" not in call("plan", "small", "--max-points-per-stage", "0").stdout
        billing = BillingSection(unit="core-hours", per_gpu_hour=0.5)
        profile = load_cluster("local").model_copy(update={"billing": billing})
        monkeypatch.setattr(spec_commands, "sweep_clusters", lambda *_: (profile,))
        shown = call("plan", "small", "--max-points-per-stage", "0").stdout
        assert "at most 432 core-hours (0.5 per GPU-hour)" in shown
        billing = billing.model_copy(update={"per_node_hour": {"elsewhere": 4.0}})
        profile = profile.model_copy(update={"billing": billing})
        monkeypatch.setattr(spec_commands, "sweep_clusters", lambda *_: (profile,))
        shown = call("plan", "small", "--max-points-per-stage", "0").stdout
        assert "at most 432 core-hours (0.5 per GPU-hour, 4 per node-hour of elsewhere)" in shown

    @pytest.mark.slow
    def test_the_points(self, call: Callable[..., Answer]) -> None:
        shown = call("plan", "small", "--max-points-per-stage", "2").stdout
        assert shown.count("lr0.001") == shown.count("lr0.002") == 7
        assert "lr0.004" not in shown
        assert shown.count("… 1 more") == 7
        assert "…" not in call("plan", "small").stdout

    @pytest.mark.slow
    def test_some_points(self, call: Callable[..., Answer]) -> None:
        for choice in ("{{ lr > 1e-3 }}", "lr0.00[24]"):
            plan = json.loads(call("plan", "small", "--select", choice, "--format", "json").stdout)
            assert {job["point"] for job in plan["jobs"]} == {"lr0.002", "lr0.004"}
        answer = call("plan", "small", "--select", "{{ lrr > 1 }}")
        assert answer.status == 1
        assert "uses 'lrr', which is not defined; did you mean 'lr'?" in answer.stderr

    def test_json_has_what_starts_and_cancels_a_job(self, call: Callable[..., Answer]) -> None:
        plan = json.loads(call("plan", "small", "--format", "json").stdout)
        assert plan == check_sweep(load_sweep("small.yaml")).to_json()
        assert plan["gpu_hours"] == 18 * 48
        by_stage = {job["stage"]: job for job in plan["jobs"]}
        assert by_stage["pretrain"]["cancel"] == "log loss: nan"
        assert by_stage["cooldown_40"]["depends_on"][0]["until"] == "checkpoint 40"
        assert by_stage["cooldown_40.evaluate"]["start"].startswith("pretrain finished and file ")

    def test_mermaid(self, call: Callable[..., Answer]) -> None:
        lines = call("plan", "small", "--format", "mermaid").stdout.splitlines()
        assert lines[0] == "flowchart TD"
        assert (
            '    s0["pretrain<br/>train, 3 jobs<br/>at most 144 GPU-hours<br/>cancelled by log loss: nan"]'
            in lines
        )
        assert '    s0 -->|"checkpoint 40"| s1' in lines
        assert "    s0 -.-> s2" in lines

    @pytest.mark.slow
    def test_overrides(self, call: Callable[..., Answer]) -> None:
        words = ("plan", "small", "--format", "json", "--set", "sweep.lr=[5]", "--set", "megatron.seed=7")
        plan = json.loads(call(*words).stdout)
        assert plan["points"] == 1
        assert plan["jobs"][0]["params"]["seed"] == 7

    @pytest.mark.slow
    def test_warnings_go_to_standard_error(self, call: Callable[..., Answer]) -> None:
        answer = call("plan", "odd", "--format", "json")
        assert json.loads(answer.stdout)["warnings"]
        assert answer.stderr.startswith("warning: ")
        assert call("plan", "odd", "--format", "json", "--quiet").stderr == ""


class TestNamesOfSweeps:
    """A command with a sweep's name searches all files of the folder for it."""

    @pytest.mark.parametrize("kind", ["pipe", "link to nothing", "device", "large file"])
    def test_odd_files_in_the_folder(self, kind: str, call: Callable[..., Answer], tmp_path: Path) -> None:
        (tmp_path / "file.yaml").write_text(SPEC.replace("name: small", "name: my_sweep"))
        odd = tmp_path / "zz.yaml"
        match kind:
            case "pipe":
                os.mkfifo(odd)
            case "link to nothing":
                odd.symlink_to("nothing")
            case "device":
                odd.symlink_to("/dev/zero")
            case "large file":
                with odd.open("wb") as stream:
                    stream.truncate(1 << 40)
        answer = call("render", "my_sweep", "lr0.001.pretrain")
        assert answer.status == 0, answer.stderr


class TestDiff:
    @pytest.mark.slow
    def test_table(self, call: Callable[..., Answer]) -> None:
        answer = call(
            "diff", "small", "small", "--set", "sweep.lr=[1e-3, 2e-3, 8e-3]", "--set", "slurm.time=7h"
        )
        assert answer.status == 0
        assert "small → small: 3 → 3 points" in answer.stdout
        assert "+ point lr0.008" in answer.stdout
        assert "- point lr0.004" in answer.stdout
        row = next(line for line in answer.stdout.splitlines() if "slurm.time" in line)
        assert row.split()[-4:] == ["06:00:00", "07:00:00", "every", "point"]

    def test_control_characters_do_not_reach_the_terminal(
        self, call: Callable[..., Answer], tmp_path: Path
    ) -> None:
        odd = SPEC.replace("slurm: {", r'env: {A: "\e]52;c;aGk=\a\u202E"}' + "\nslurm: {")
        (tmp_path / "hostile.yaml").write_text(odd)
        answer = call("diff", "small", "hostile.yaml")
        assert answer.status == 0, answer.stderr
        assert "aGk=" in answer.stdout
        assert not [letter for letter in answer.stdout + answer.stderr if letter in "\x1b\x07\u202e"]

    @pytest.mark.slow
    def test_json(self, call: Callable[..., Answer]) -> None:
        words = ("diff", "small", "small", "--set", "megatron.save_interval=10", "--format", "json")
        difference = json.loads(call(*words).stdout)
        assert difference["points_appeared"] == difference["points_vanished"] == []
        assert {(row["stage"], row["name"], row["old"], row["new"]) for row in difference["changes"]} == {
            (stage, "save_interval", 20, 10) for stage in ("pretrain", "cooldown_40", "cooldown_60")
        }

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("select", "line"),
        [("lr0.008", "+ point lr0.008"), ("lr0.004", "- point lr0.004"), ("lr0.001", "no difference")],
    )
    def test_a_selected_point_may_be_in_one_of_the_specs(
        self, call: Callable[..., Answer], select: str, line: str
    ) -> None:
        words = ("diff", "small", "small", "--set", "sweep.lr=[1e-3, 2e-3, 8e-3]", "--select", select)
        assert call(*words).stdout.splitlines()[1:] == [line]

    def test_a_selection_that_neither_spec_has(self, call: Callable[..., Answer]) -> None:
        assert "no point matches 'lr9'" in call("diff", "small", "small", "--select", "lr9").stderr

    def test_no_difference(self, call: Callable[..., Answer]) -> None:
        assert call("diff", "small", "./small.yaml").stdout.splitlines()[-1] == "no difference"


class TestVerbosity:
    @pytest.mark.parametrize(
        ("flag", "variable", "levels"),
        [
            (None, None, {"warning"}),
            (None, "info", {"warning", "info"}),
            (None, "ERROR", set()),
            ("--quiet", "DEBUG", set()),
            ("--verbose", "ERROR", {"warning", "info"}),
            ("--debug", None, {"warning", "info", "debug"}),
            ("--debug", "CRITICAL", {"warning", "info", "debug"}),
        ],
    )
    @pytest.mark.parametrize("first", [True, False])
    def test_flags_win_over_the_environment(
        self,
        flag: str | None,
        variable: str | None,
        levels: set[str],
        first: bool,
        call: Callable[..., Answer],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if variable:
            monkeypatch.setenv("AIRFLOW_MEGATRON_LOG_LEVEL", variable)
        flags = [flag] if flag else []
        answer = call(*(flags if first else []), "plan", "odd", *([] if first else flags))
        assert {line.partition(":")[0] for line in answer.stderr.splitlines()} == levels

    def test_an_unknown_level(self, call: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AIRFLOW_MEGATRON_LOG_LEVEL", "loud")
        answer = call("plan", "small")
        assert answer.status == 2
        assert "AIRFLOW_MEGATRON_LOG_LEVEL is 'LOUD'; use one of DEBUG, INFO" in answer.stderr


@pytest.mark.slow
def test_schema(call: Callable[..., Answer]) -> None:
    assert json.loads(call("schema").stdout) == sweep_spec_schema()


@pytest.mark.parametrize(
    ("typed", "answers"),
    [
        (["plan", "s"], {"small", "small.yaml"}),
        (["lint", "small", "./o"], {"./odd.yaml"}),
        (["plan", "small", "--cluster", "l"], {"local"}),
        (["plan", "small", "--form"], {"--format"}),
        (["pl"], {"plan"}),
        (["cluster", "check", "l"], {"local"}),
        (["init", "x", "--site", "lu"], {"lumi-g"}),
        (["render", "small", "lr0.002.c"], {"lr0.002.cooldown_40", "lr0.002.cooldown_60.evaluate"}),
        (["plan", "small", "--select", "lr0.001,lr0.00"], {"lr0.001,lr0.002", "lr0.001,lr0.004"}),
        (["build", "none-such", "x", "--select", "l"], set()),
    ],
)
def test_completion_in_bash(
    typed: list[str], answers: set[str], call: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_AIRFLOW_MEGATRON_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["airflow-megatron", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    monkeypatch.setattr(
        sys.modules["__main__"], "__package__", None
    )  # a script, not python -m: its name counts
    assert answers <= set(call().stdout.split())


@pytest.mark.slow
def test_plan_counts_parameters_without_padding_where_it_shows(call: Callable[..., Answer]) -> None:
    words = ("plan", str(project_root() / "sweep_specs/context_parallelism_gpt2_xl.yaml"))
    assert "1.56B to 1.58B parameters," in call(*words).stdout.replace("\n", " ")
    padded = call(*words, "--set", "megatron.make_vocab_size_divisible_by=60000").stdout.replace("\n", " ")
    assert " parameters (1.56B to 1.58B without the vocabulary's padding)" in padded


@pytest.mark.parametrize("command", ["plan", "cancel", "delete", "status"])
def test_an_empty_selection_is_not_all_points(call: Callable[..., Answer], command: str) -> None:
    answer = call(command, "small", "--select", " ")
    assert answer.status == 2
    assert "--select': it is empty; leave the option out for all points" in answer.stderr


@pytest.mark.parametrize(
    ("words", "otherwise"),
    [
        *(
            ((command, "small"), "the spec's own cluster")
            for command in ("lint", "plan", "status", "cancel", "report", "fit", "delete")
        ),
        (("rerun", "manual__1"), "the run's own cluster"),
        (("checkpoints",), "the checkpoints of a directory"),
        (("megatron-args", "check", "commands.txt", "--release", "0.16.1"), "a node of default settings"),
    ],
)
def test_an_empty_cluster_is_not_the_usual_one(
    call: Callable[..., Answer], words: tuple[str, ...], otherwise: str
) -> None:
    answer = call(*words, "--cluster", "")
    assert answer.status == 2
    assert f"--cluster': it is empty; leave the option out for {otherwise}" in answer.stderr
