"""The stage tree of a loaded sweep: fan-out, parents, names, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from example_specs import CHAIN

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.stage_tree import StageInstance


def tree(stages: str) -> dict[str, StageInstance]:
    sweep = load_sweep_text(f"name: x\npoint: p\nstages:\n{stages}", "s.yaml")
    return {instance.name: instance for instance in sweep.tree}


def told(stages: str) -> str:
    with pytest.raises(SpecError) as caught:
        tree(stages)
    return str(caught.value)


def test_a_chain_with_a_fan() -> None:
    found = {instance.name: instance for instance in load_sweep_text(CHAIN, "s.yaml").tree}
    assert {name: (one.parent, one.branch) for name, one in found.items()} == {
        "prepare": (None, None),
        "pretrain": ("prepare", "pretrain"),
        "cooldown_300k": ("pretrain", "cooldown_300k"),
        "cooldown_600k": ("pretrain", "cooldown_600k"),
        "pretrain.convert": ("pretrain", "pretrain"),
        "cooldown_300k.convert": ("cooldown_300k", "cooldown_300k"),
        "cooldown_600k.convert": ("cooldown_600k", "cooldown_600k"),
        "pretrain.evaluate": ("pretrain.convert", "pretrain"),
        "cooldown_300k.evaluate": ("cooldown_300k.convert", "cooldown_300k"),
        "cooldown_600k.evaluate": ("cooldown_600k.convert", "cooldown_600k"),
    }
    assert found["cooldown_600k"].values == {"budget": "600k"}
    assert [one.name for one in found.values() if one.scope == "sweep"] == ["prepare"]


def test_parents_come_first_in_whatever_order_they_are_written() -> None:
    found = list(
        tree(
            "  evaluate: {kind: evaluate, parent: convert}\n"
            "  convert: {kind: convert, parent: [cooldown, pretrain]}\n"
            "  cooldown: {kind: train, parent: pretrain}\n"
            "  pretrain: {kind: train}\n"
        ).values()
    )
    place = {instance.name: index for index, instance in enumerate(found)}
    assert len(found) == 6
    assert all(place[one.parent] < place[one.name] for one in found if one.parent)


def test_fans_multiply() -> None:
    found = tree(
        "  pretrain: {kind: train, for_each: {seed: [1, 2]}}\n"
        "  cooldown: {kind: train, parent: pretrain, for_each: {budget: [1M, 2M]}}\n"
    )
    assert list(found) == [
        "pretrain_1",
        "pretrain_2",
        "pretrain_1_cooldown_1M",
        "pretrain_1_cooldown_2M",
        "pretrain_2_cooldown_1M",
        "pretrain_2_cooldown_2M",
    ]


def test_values_of_several_keys_are_named() -> None:
    found = tree(
        "  pretrain:\n    kind: train\n    for_each:\n      phase: [{name: long, train_iters: 9, lr: 2}, short, 0.5]\n"
    )
    assert {name: dict(one.values) for name, one in found.items()} == {
        "pretrain_long": {"phase": "long", "train_iters": 9, "lr": 2},
        "pretrain_short": {"phase": "short"},
        "pretrain_0p5": {"phase": 0.5},
    }


def test_equal_documents_give_equal_trees() -> None:
    assert load_sweep_text(CHAIN, "s.yaml").tree == load_sweep_text(CHAIN, "s.yaml").tree


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        (
            "  a: {kind: train}\n  b: {kind: convert, parent: aa}\n",
            "s.yaml:5:22: there is no stage 'aa'",
        ),
        (
            "  pretrain: {kind: train}\n  b: {kind: convert, parent: pretrian}\n",
            "s.yaml:5:22: there is no stage 'pretrian' (did you mean 'pretrain'?)",
        ),
        (
            "  a: {kind: train, parent: c}\n  b: {kind: train, parent: a}\n  c: {kind: train, parent: b}\n",
            "stages need each other: a → c → b → a",
        ),
        (
            "  a: {kind: train, parent: a}\n",
            "s.yaml:4:20: stages need each other: a → a (a stage can have only",
        ),
        (
            "  a: {kind: train}\n  b: {kind: command, command: [x], scope: sweep, parent: a}\n",
            "a stage that runs once for the sweep cannot follow 'a', which runs at every point (give it scope: point)",
        ),
        (
            "  a: {kind: train, start: {checkpoint: 5}}\n",
            "s.yaml:4:20: start needs a parent (add parent: …, or",
        ),
        ("  a: {kind: train, start: {any: [{file: x}, {log: y}]}}\n", "s.yaml:4:45: start needs a parent"),
        ("  a: {kind: convert, start: {file: x}}\n", "s.yaml:4:3: convert needs a parent"),
        (
            "  a: {kind: lr_finder}\n  b: {kind: convert, parent: a}\n",
            "s.yaml:5:22: convert needs checkpoints, and no stage before it saves any (name a stage of kind train",
        ),
        (
            "  a: {kind: command, command: [x], run_dir: y}\n",
            "s.yaml:4:36: run_dir has no effect in a stage of kind command (it is for stages of kind train",
        ),
        (
            "  a: {kind: train}\n  b: {kind: convert, parent: a, restart: {chain: 2}}\n",
            "s.yaml:5:43: restart.chain has no effect in a stage of kind convert",
        ),
        *(
            (
                f"  a: {{kind: train}}\n  b: {{kind: convert, parent: a, restart: {{{key}: {value}}}}}\n",
                f"s.yaml:5:43: restart.{key} has no effect in a stage of kind convert (it is for stages of kind train",
            )
            for key, value in {
                "quarantine": 3,
                "rollbacks": 2,
                "shrink_after": 3,
                "from_scratch": "allow",
            }.items()
        ),
        ("  a: {kind: train, measure: {skip: 3}}\n", "measure has no effect in a stage of kind train"),
        (
            "  a: {kind: command, command: [x], health: {nan: {do: fail}}}\n",
            "health has no effect in a stage of",
        ),
        (
            "  a: {kind: command, command: [x], megatron: {num_layers: 2}}\n",
            "s.yaml:4:47: megatron.num_layers has no effect in a stage of kind command",
        ),
        (
            "  a: {kind: train, finish: {finished: a}}\n",
            "s.yaml:4:20: finish waits for the end of 'a' itself",
        ),
        (
            "  abc: {kind: train, events: [{log: x, do: fail, when: {log: x, of: abd}}]}\n",
            "s.yaml:4:50: when names 'abd', which is not a stage (did you mean 'abc'?)",
        ),
        ("  a: {kind: evaluate}\n", "s.yaml:4:3: evaluate needs a parent (add parent: …, or start:"),
        (
            "  d: {kind: command, command: [x]}\n  a: {kind: train, parent: d}\n  b: {kind: evaluate, parent: a}\n",
            "s.yaml:6:23: evaluate needs a Hugging Face model, and no stage before it makes one (add a stage of kind",
        ),
        ("  a: {kind: command}\n", "s.yaml:4:3: kind: command needs a command (write command: [python, …])"),
        (
            "  a: {kind: train, for_each: {x: []}}\n",
            "s.yaml:4:31: for_each has no values (give one or drop it)",
        ),
        ("  a: {kind: train, for_each: {x: [1], y: [2]}}\n", "for_each takes one variable"),
        (
            "  a: {kind: train, for_each: {x: ['{{ lr }}']}}\n",
            "s.yaml:4:35: for_each takes plain values (the DAG's shape is fixed by them)",
        ),
        ("  a: {kind: train, for_each: {x: [{lr: 3}]}}\n", "a for_each value of several keys needs a name"),
        (
            "  a: {kind: train, for_each: {x: [a/b]}}\n",
            "'a/b' cannot be part of a name (letters, digits, '_', '-')",
        ),
        (
            (
                "  a: {kind: train}\n  b: {kind: convert, parent: a}\n  c: {kind: convert, parent: a}\n"
                "  e: {kind: evaluate, parent: [b, c]}\n"
            ),
            "two stages are named 'a.e' (a.b and a.c are of one branch: write a stage after each of them)",
        ),
        (
            "  a: {kind: train, for_each: {x: [1, 1]}}\n",
            "two stages are named 'a_1' (rename a stage or value)",
        ),
        (
            "  a: {kind: train}\n  b: {kind: train, parent: a, array: true}\n",
            "s.yaml:5:31: the tasks of an array start together, but 'a' ends at another time for each point",
        ),
        (
            "  a: {kind: command, command: [x], scope: sweep, array: 4}\n",
            "s.yaml:4:50: a stage that runs once for the sweep is one job, no array (drop array:)",
        ),
        (
            "  a: {kind: train, scope: sweep}\n  b: {kind: train, parent: a, array: 4, start: {checkpoint: 5}}\n",
            "the tasks of an array are submitted together, before the start conditions of the points are checked",
        ),
        ("  a: {kind: train, for_each: {x: [b]}}\n  a_b: {kind: train}\n", "two stages are named 'a_b'"),
        (
            "  a: {kind: train}\n  b: {kind: train, parent: a, start: {finished: b}}\n",
            "s.yaml:5:31: the stage 'b' waits for itself (name a stage that comes before it)",
        ),
        (
            (
                "  a: {kind: train}\n"
                "  b: {kind: train, parent: a, for_each: {x: [1, 2]}, start: {any: [{finished: b_2}]}}\n"
            ),
            "the stage 'b_1' waits for 'b_2', which is made after it",
        ),
        (
            (
                "  a: {kind: train}\n  b: {kind: train, scope: sweep}\n"
                "  c: {kind: train, parent: b, scope: sweep, start: {finished: [a]}}\n"
            ),
            "'c' runs once for the sweep and waits for 'a' of each point (give it scope: point)",
        ),
    ],
)
def test_what_is_no_tree(stages: str, message: str) -> None:
    assert message in told(stages)


@pytest.mark.parametrize(
    "start",
    [
        "{file: /data/ready}",
        "{command: [test, -e, /data/ready], every: 1m}",
        "{all: [{file: x}, {not: {file: y}}]}",
        "{checkpoint: 5, of: a}",
        "{finished: a}",
        "{any: [{log: x, of: a}, {file: x}]}",
    ],
)
def test_a_stage_without_a_parent_waits_for_what_needs_none(start: str) -> None:
    found = tree(f"  a: {{kind: train}}\n  b: {{kind: train, start: {start}}}\n")["b"]
    assert (found.parent, found.waits) == (None, "condition")
    assert found.after == (("a",) if "a}" in start else ())


@pytest.mark.parametrize(
    "stages",
    [
        "  a: {kind: command, command: ['{{ lr }}'], megatron: {lr: 2}, health: off, restart: {failed: 1}}\n",
        "  a: {kind: command, command: [x]}\n  b: {kind: convert, parent: a}\n",
        "  a: {kind: convert, start: {from: /x, iteration: 1}, run_dir: y}\n  b: {kind: convert, parent: a}\n",
        "  a: {kind: train, run_dir: y, restart: {chain: 2}}\n  b: {kind: benchmark, measure: {skip: 3}}\n",
    ],
)
def test_keys_that_a_kind_reads(stages: str) -> None:
    assert tree(stages)
