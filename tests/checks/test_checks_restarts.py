"""What a restart policy changes in later attempts is checked before anything is submitted."""

from __future__ import annotations

import pytest
from checked_chain import TRUNK, changed, checked, errors_of, line_of


def with_restart(content: str, text: str = TRUNK) -> str:
    return changed(("sweep:\n", f"restart: {{{content}}}\nsweep:\n"), text=text)


@pytest.mark.slow
def test_smaller_numbers_of_nodes() -> None:
    four = changed(("nodes: 2", "nodes: 4"), ("micro_batch_size: 8", "micro_batch_size: 1"))
    assert errors_of(with_restart("nodes: [2, 1]", four)) == []
    text = with_restart("nodes: [3, 1]", four)
    problems = errors_of(text)  # a batch of 16 cannot be spread over 12 GPUs
    assert {problem.line for problem in problems} == {line_of(text, "restart:")}
    assert "on 3 nodes the data parallel size is 12: times micro_batch_size (1)" in problems[0].message
    wide = changed(("micro_batch_size: 1", "micro_batch_size: 1\n  tensor_model_parallel_size: 8"), text=four)
    assert errors_of(with_restart("nodes: [2]", wide)) == []
    (problem, *_) = errors_of(with_restart("nodes: [3, 2]", wide))
    assert "3 nodes have 12 GPUs" in problem.message


@pytest.mark.parametrize("sizes", ["2", "1, 1", "3, 1"])
def test_numbers_of_nodes_that_are_not_smaller(sizes: str) -> None:
    problems = errors_of(with_restart(f"nodes: [{sizes}]"))
    assert problems
    assert problems[0].hint == "numbers below slurm.nodes (2), the largest first"


def test_arguments_after_a_rollback() -> None:
    plan = checked(with_restart('after_rollback: {lr: "{{ lr / 2 }}", override_opt_param_scheduler: true}'))
    after = [job.restart.after_rollback for job in plan.jobs if job.stage == "pretrain"]
    assert [changes["lr"] for changes in after] == [0.0005, 0.002]
    (problem, *_) = errors_of(with_restart("after_rollback: {learning_rat: 1}"))
    assert "no such argument" in problem.message


def test_only_training_can_go_back() -> None:
    stage = "    events: [{log: bad, do: rollback}]\n"
    text = changed(("    parent: [pretrain, cooldown]\n", f"    parent: [pretrain, cooldown]\n{stage}"))
    (problem, *_) = errors_of(text)
    assert "do: rollback is for stages of kind train" in problem.message
    assert errors_of(changed(("    parent: pretrain\n", f"    parent: pretrain\n{stage}"))) == []
