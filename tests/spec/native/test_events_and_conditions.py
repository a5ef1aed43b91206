"""Events and conditions of native specs that cannot be intended are refused with a hint."""

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
            "s.yaml:5:47: stage b at point p: event 1: no state of Slurm matches 'FAILD' (did you mean 'FAILED'?)",
        ),
        (
            "events: [{state: failed, do: notify}]",
            "no state of Slurm matches 'failed' (did you mean 'FAILED'?)",
        ),
        ("events: [{log: '', do: notify}]", "the pattern is empty, and every line matches it"),
        ('events: [{log: "done\\n", do: notify}]', "holds a line end, and it is looked for within each line"),
        (
            "start: {log: '[a]\\nb'}",
            r"s.yaml:5:47: stage b at point p: the pattern '[a]\\nb' holds a line end",
        ),
        ("start: {log: '(a|b)\\n{2}c'}", "holds a line end, and it is looked for within each line"),
        ("events: [{log: x, idle: 5m, do: notify}]", "event 1: give exactly one of log, state, idle"),
        ("events: [{do: notify}]", "event 1: give exactly one of log, state, idle"),
        (
            "events: [{idle: 0, do: notify}]",
            "event 1: idle is 0, and the event would happen at the first poll",
        ),
        (
            "events: [{name: n, log: x, do: notify}, {name: n, log: y, do: notify}]",
            "two events are named 'n', and the limit of one would count the actions of the other",
        ),
        (
            "events: [{log: x, do: restart, command: [y]}]",
            "s.yaml:5:78: stage b at point p: event 1: command belongs to do: run, not to do: restart; drop it",
        ),
        (
            "events: [{log: x, do: run, command: y, message: z}]",
            "message belongs to do: notify, not to do: run",
        ),
        (
            "events: [{log: 'x (?P<it>.)', do: run, command: 'y $am_match_iteration'}]",
            "event 1: the pattern has no group 'iteration', which $am_match_iteration is; its groups: it",
        ),
        (
            "cancel: {file: x, of: a}",
            "s.yaml:5:65: stage b at point p: of: says whose checkpoint or log is meant",
        ),
        ("start: {log: ''}", "the pattern is empty, and every line matches it"),
        ("start: {file: ''}", "file: is empty; write a path"),
        ('start: {file: "a\\nb"}', "holds a control character"),
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
        "events: [{log: '(?P<it>.)', do: run, command: [y, $am_match_it]}]",
        "start: {not: {file: x}}",
        "finish: {command: ['true'], prints: ''}",
    ],
)
def test_what_can_be_meant(more: str, cluster: ClusterProfile) -> None:
    assert problems(more, cluster) == []
