"""Names of params, swept values and variables that expressions hold with another meaning."""

from __future__ import annotations

import pytest
from checked_chain import changed, checked, line_of

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "params: {tokenizer",
            "params: {stage: 2, tokenizer",
            "'stage' would hide {{ stage }}, the name of the",
        ),
        ("params: {tokenizer", "params: {none: 2, tokenizer", "{{ none }} is a constant in expressions"),
        (
            "  lr: [1e-3, 4e-3]",
            "  lr: [1e-3, 4e-3]\n  python: [3]",
            "'python' would hide {{ python }}, the Python",
        ),
        (
            "  lr: [1e-3, 4e-3]",
            "  lr: [1e-3, 4e-3]\n  cooldown.point: [3]",
            "'cooldown.point' would hide {{ point",
        ),
        (
            "    parent: pretrain\n",
            "    parent: pretrain\n    for_each: {parent: [1]}\n",
            "hide {{ parent }}",
        ),
        ("    parent: pretrain\n", "    parent: pretrain\n    params: {run_dir: x}\n", "hide {{ run_dir }}"),
    ],
)
def test_names_that_expressions_hold_already(old: str, new: str, told: str) -> None:
    text = changed((old, new))
    with pytest.raises(SpecError) as error:
        load_sweep_text(text, "s.yaml")
    (problem,) = error.value.problems
    assert told in problem.message
    assert problem.line == line_of(text, new.strip().splitlines()[-1].strip())
    assert problem.hint.startswith("another name: my_")


@pytest.mark.parametrize("name", ["lr_of_stage", "max", "iteration", "tokens", "cluster"])
def test_other_names_are_free(name: str) -> None:
    load_sweep_text(changed(("params: {tokenizer", f"params: {{{name}: 2, tokenizer")), "s.yaml")


@pytest.mark.slow
def test_resources_that_a_value_hides() -> None:
    reads = 'wandb_exp_name: "{{ nodes }}"\n  seq_length'
    text = changed(("params: {tokenizer", "params: {nodes: 4, tokenizer"), ("seq_length", reads))
    warnings = [problem for problem in checked(text).warnings if "slurm.nodes" in problem.message]
    assert [problem.message.partition(" at ")[0] for problem in warnings] == ["stage pretrain"]
    assert warnings[0].message.endswith("and in 1 more stage")
    assert "{{ nodes }} is 4 in expressions, and the job runs with slurm.nodes 2" in warnings[0].message
    assert warnings[0].line == line_of(text, "params:")
    swept = changed(("sweep:\n", "sweep:\n  nodes: [2, 4]\n"), ("lr{{ lr }}", "lr{{ lr }}_{{ nodes }}"))
    (warning, *_) = [problem for problem in checked(swept).warnings if "slurm.nodes" in problem.message]
    assert warning.line == line_of(swept, "nodes: [2, 4]")
    same = text.replace("nodes: 2", 'nodes: "{{ nodes }}"').replace(
        "micro_batch_size: 8", "micro_batch_size: 4"
    )
    assert not [problem for problem in checked(same).warnings if "slurm.nodes" in problem.message]
