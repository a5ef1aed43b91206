"""Launch commands and mutated ones: the rules refuse what upstream itself refuses, and take what it takes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from command_lines import judged, mutated
from shipped import launch_specs
from upstream import UpstreamMissingError, find_upstream
from upstream_answers import command_line_of, upstream_answers

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trainer

RELEASE = "core_v0.16.1"
MUTATIONS = 250


@pytest.fixture
def checkout() -> Path:
    try:
        return find_upstream(RELEASE)
    except UpstreamMissingError as error:
        pytest.skip(str(error))


def test_upstream_takes_the_launch_commands_of_the_studies(checkout: Path) -> None:
    jobs = [job for path in launch_specs() for job in check_sweep(load_sweep(path)).jobs]
    answers = upstream_answers([command_line_of(job) for job in jobs], checkout, RELEASE)
    refused = [
        (job.name, answer["message"]) for job, answer in zip(jobs, answers, strict=True) if not answer["ok"]
    ]
    assert refused == []


def test_mutated_command_lines_are_judged_as_upstream_judges_them(checkout: Path) -> None:
    chance = random.Random(16)
    lines = [mutated(chance, RELEASE) for _ in range(MUTATIONS)]
    answers = upstream_answers(lines, checkout, RELEASE)
    judged_otherwise = [
        (line, answer, problems)
        for line, answer in zip(lines, answers, strict=True)
        if bool(problems := judged(line, RELEASE)) is answer["ok"]
    ]
    assert judged_otherwise == []
    taken = sum(answer["ok"] for answer in answers)
    assert MUTATIONS // 4 < taken < MUTATIONS * 9 // 10  # both kinds are among them
