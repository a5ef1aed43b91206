"""Events and conditions of native specs that no job can have meant are refused, with what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from example_specs import spec_text

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile


def problems(more: str, cluster: ClusterProfile) -> list[str]:
    stages = f"stages:\n  a: {{kind: command, command: [x]}}\n  b: {{kind: command, command: [x], parent: a, {more}}}\n"
    try:
        check_sweep(load_sweep_text(spec_text(point="p", stages=stages), "s.yaml"), cluster)
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "events: [{state: FAILD, do: notify}]",
            "no state of Slurm matches 'FAILD' (did you mean 'FAILED'?)",
        ),
        (
            "events: [{state: failed, do: notify}]",
            "no state of Slurm matches 'failed' (did you mean 'FAILED'?)",
        ),
        ("events: [{log: '', do: notify}]", "the pattern is empty, and every line matches it"),
        (
            "events: [{idle: 0, do: notify}]",
            "event 1: idle is 0, and the event would happen at the first poll",
        ),
        (
            "events: [{name: n, log: x, do: notify}, {name: n, log: y, do: notify}]",
            "two events are named 'n', and the limit of one would count the actions of the other",
        ),
        ("start: {log: ''}", "the pattern is empty, and every line matches it"),
        ("start: {file: ''}", "file: is empty; write a path"),
        ("finish: {command: []}", "command: is empty"),
        ("cancel: {command: ' '}", "command: is empty"),
        ("cancel: {file: x, prints: y}", "prints: is the output of a command; add command:"),
        ("start: {nott: {file: x}}", "unknown key 'nott' (did you mean 'not'?)"),
    ],
)
def test_what_cannot_be_meant(more: str, message: str, cluster: ClusterProfile) -> None:
    assert message in "\n".join(problems(more, cluster))


@pytest.mark.parametrize(
    "more",
    [
        "events: [{state: 'TIME|NODE_FAIL', do: notify}]",
        "events: [{state: '^(?i:failed)$', do: notify}]",
        "events: [{log: x, do: notify}, {log: x, do: notify}]",
        "events: [{idle: 30m, do: notify}]",
        "start: {not: {file: x}}",
        "finish: {command: ['true'], prints: ''}",
    ],
)
def test_what_can_be_meant(more: str, cluster: ClusterProfile) -> None:
    assert problems(more, cluster) == []
