from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from airflow_megatron.cli.megatron_args import app


@pytest.mark.parametrize("release", ["0.16.1", "v0.16.1", "core_v0.16.1"])
def test_a_release_is_named_by_its_tag_or_its_number(release: str) -> None:
    line = json.dumps({"argv": ["--num-layer", "4"], "world_size": 1})
    result = CliRunner().invoke(app, ["check", "--release", release], input=line)
    assert result.exit_code == 0, result.output
    assert "core_v0.16.1 has no argument --num-layer" in json.loads(result.stdout)["problems"][0]["message"]


def test_a_release_that_is_not_known() -> None:
    result = CliRunner().invoke(app, ["check", "--release", "0.16.0"], input="")
    assert result.exit_code == 2
    assert "0.16.0: no such release; known are" in result.output
    assert "did you mean core_v0.16.1?" in result.output
