"""Joint checks of command lines that differ in a few values give the same results as separate checks."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import pytest
from test_validation import BASE as ARGUMENTS
from test_validation import RECORDED, RELEASES

from airflow_megatron.megatron.arguments.argv import to_argv
from airflow_megatron.megatron.arguments.tables import program_table
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.rules.settings import Machine
from airflow_megatron.megatron.validation.command_checks import check
from airflow_megatron.megatron.validation.repeated_checks import RepeatedChecks

if TYPE_CHECKING:
    from collections.abc import Sequence

RELEASE = "core_v0.16.1"
MACHINE = Machine(packages=frozenset({"apex"}))
BASE = ARGUMENTS | {
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
    "vocab_size": 128,
    "eval_interval": 100,
}


def checks(release: str = RELEASE, world_size: int = 8, *, first_iteration: bool = True) -> RepeatedChecks:
    # the recorded verdicts are from a machine without optional packages
    machine = MACHINE if first_iteration else Machine()
    return RepeatedChecks(
        world_size,
        release,
        machine=machine,
        first_iteration=first_iteration,
        flags=reader(program_table(release).with_packages(machine.packages)),
    )


def told(words: Sequence[str]) -> list[str]:
    return [str(problem) for problem in check(words, 8, RELEASE, machine=MACHINE, first_iteration=True)]


def test_a_value_that_no_rule_reads_is_checked_once() -> None:
    repeated = checks()
    for number in range(1, 200):
        words = to_argv(
            BASE | {"weight_decay": number / 1000, "lr": 1e-4, "adam_eps": number * 1e-9}, RELEASE
        )
        assert repeated.problems(words) == [] == told(words)
    assert (repeated.notes, repeated.saved) == (1, 198)


@pytest.mark.parametrize("word", ["x", "", "-1", "--lr", "0.1 0.2", "1e", "nan", "-", "--"])
def test_a_value_that_the_parser_may_not_take_is_checked(word: str) -> None:
    repeated = checks()
    words = [*to_argv(BASE, RELEASE), "--weight-decay", "0.1"]
    assert repeated.problems(words) == []
    words[-1] = word
    assert [str(problem) for problem in repeated.problems(words)] == told(words)


def test_values_that_rules_read_are_checked() -> None:
    """Each argument of a long command line is checked, for any value."""
    drawn = random.Random(0)
    repeated = checks()
    base = to_argv(BASE | {"tensor_model_parallel_size": 2, "sequence_parallel": True}, RELEASE)
    assert repeated.problems(base) == []
    places = [place for place in range(1, len(base)) if not base[place].startswith("-")]
    for _ in range(400):
        words = list(base)
        for place in drawn.sample(places, 2):
            words[place] = drawn.choice(["0", "1", "2", "3", "7", "12", "64", "1000", "0.5", "true", "local"])
        assert [str(problem) for problem in repeated.problems(words)] == told(words), words


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_recorded_command_lines(release: str) -> None:
    """All are checked twice with one cache: cached results of one do not change the result of another."""
    books: dict[int, RepeatedChecks] = {}
    lines = [json.loads(line) for line in (RECORDED / f"{release}.jsonl").read_text().splitlines()]
    for line in [*lines, *lines]:
        size = line["world_size"]
        repeated = books.setdefault(size, checks(release, size, first_iteration=False))
        assert repeated.problems(line["argv"]) == check(line["argv"], size, release), line
