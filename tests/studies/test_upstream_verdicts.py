"""Launch commands and mutations of them: the rules refuse and accept the same ones as upstream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from record_release import LINES, differences, record_arguments, record_verdicts
from shipped import launch_specs
from upstream import UpstreamMissingError, find_upstream
from upstream_answers import command_line_of, upstream_answers

from airflow_megatron.megatron.arguments.tables import TABLE_FILE
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.trainer

RELEASE = "core_v0.16.1"


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


def test_a_release_is_recorded(checkout: Path, tmp_path: Path) -> None:
    """``make record`` for a release that was removed from the table: the rules agree with upstream."""
    table = json.loads(TABLE_FILE.read_text())
    without = {
        **table,
        "releases": {name: rows for name, rows in table["releases"].items() if name != RELEASE},
    }
    (tmp_path / "arguments.json").write_text(json.dumps(without))
    message = record_arguments(RELEASE, checkout, tmp_path / "arguments.json")
    assert message == f"{len(table['releases'][RELEASE])} arguments, 0 that no table had"
    assert json.loads((tmp_path / "arguments.json").read_text()) == table
    recorded = record_verdicts(RELEASE, checkout, tmp_path)
    assert differences(RELEASE, recorded) == {}
    taken = sum(line["ok"] for line in recorded)
    assert LINES // 4 < taken < LINES * 9 // 10  # both kinds are among them
    wrong = [{**line, "ok": not line["ok"]} for line in recorded[:20]]
    assert sum(map(len, differences(RELEASE, wrong).values())) == 20
