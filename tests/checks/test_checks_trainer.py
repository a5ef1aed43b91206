"""Errors of this project's trainer are reported before submission."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from checked_chain import alps

from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.requirements import job_programs
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import HOME_VARIABLE, templates_dir
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from pathlib import Path

SPEC = """\
name: small
point: "b{{ micro_batch_size }}"
slurm: {nodes: 1, gpus_per_node: 4, time: 1h}
megatron:
  num_layers: 2
  hidden_size: 64
  num_attention_heads: 4
  seq_length: 64
  max_position_embeddings: 64
  mock_data: true
  tokenizer_type: NullTokenizer
  vocab_size: 100
  lr: 1e-3
  train_iters: 10
  save_interval: 5
  global_batch_size: 16
stages: {pretrain: {kind: train}}
sweep: {params: {micro_batch_size: [2, 4]}}
"""


def planned(text: str) -> Plan:
    return check_sweep(load_sweep_text(text, "s.yaml"), alps())


@pytest.mark.slow
def test_what_the_trainer_takes() -> None:
    assert planned(SPEC).warnings == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            ("global_batch_size: 16", "global_batch_size: 24"),
            r"s.yaml:16:3: .* at point b4: .*\(24\) must be a multiple of .*\(16\) \(change global_batch_size",
        ),
        (
            ("hidden_size: 64", "hidden_size: 66"),
            "s.yaml:6:3: .* the same at 1 more point .*num_attention_heads",
        ),
        (
            ("  lr: 1e-3", "  lr: 1e-3\n  optimizer: lamb\n  use_mup: true"),
            "--use-mup knows no rule for --optimizer lamb",
        ),
        (("  lr: 1e-3\n", ""), r"--lr must be given; .* \(give lr\)"),
    ],
    ids=["batch", "heads", "mup", "missing"],
)
def test_refusals(change: tuple[str, str], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        planned(SPEC.replace(*change))


@pytest.mark.slow
def test_a_template_of_the_site_may_add_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sbatch").mkdir()
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    incomplete = SPEC.replace("  lr: 1e-3\n", "")
    own = tmp_path / "sbatch" / "train.sbatch.j2"
    text = (shipped("sbatch") / own.name).read_text()
    own.write_text(text)
    with pytest.raises(SpecError, match="--lr must be given"):
        planned(incomplete)
    own.write_text(f"{text}\n# it adds --lr 1e-4\n")
    (warning,) = planned(incomplete).warnings
    assert "--lr must be given" in str(warning)


def test_a_command_in_the_trainers_place() -> None:
    own = SPEC.replace("{kind: train}", "{kind: benchmark, command: [bash, -c, 'sleep 1']}").replace(
        "16", "24"
    )
    assert planned(own).warnings == ()


@pytest.mark.slow
def test_each_part_with_a_problem_is_named() -> None:
    text = SPEC.replace("  train_iters: 10\n", "  train_iters: 10\n  eval_iters: -1\n").replace("16", "24")
    with pytest.raises(SpecError) as caught:
        planned(text)
    assert "--eval-iters must not be negative" in str(caught.value)
    assert "must be a multiple of" in str(caught.value)


def test_it_is_asked_only_when_nothing_else_is_wrong() -> None:
    with pytest.raises(SpecError) as caught:
        planned(SPEC.replace("train_iters: 10", "train_iters: 10\n  lr_warmup_iters: 20"))
    assert "the trainer rejects" not in str(caught.value)


@pytest.mark.slow
def test_a_trainer_that_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").symlink_to(templates_dir())
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    bad = SPEC.replace("16", "24")
    with pytest.raises(SpecError, match="must be a multiple"):
        planned(bad)  # a project without programs uses those of the package
    program = tmp_path / "Megatron-LM" / "check_arguments.py"
    program.parent.mkdir()
    program.write_text("import nowhere")
    with pytest.raises(
        SpecError, match="exit status 1: ModuleNotFoundError: No module named 'nowhere'"
    ) as caught:
        planned(bad)
    (problem,) = caught.value.problems
    assert problem.line == bad.splitlines().index("megatron:") + 1


@pytest.mark.slow
def test_a_trainer_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").symlink_to(templates_dir())
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(job_programs, "_START_S", 0.1)
    monkeypatch.setattr(job_programs, "_QUESTION_S", 0.0)
    program = tmp_path / "Megatron-LM" / "check_arguments.py"
    program.parent.mkdir()
    program.write_text("import time; time.sleep(60)")
    with pytest.raises(SpecError, match=r"check_arguments\.py did not end within 0 s"):
        planned(SPEC)
