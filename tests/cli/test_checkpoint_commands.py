from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer
from typer.testing import CliRunner

from airflow_megatron.cli.checkpoint_commands import checkpoints

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer()
app.command()(checkpoints)


def test_json(tmp_path: Path) -> None:
    done = tmp_path / "iter_0000020" / "mp_rank_00"
    done.mkdir(parents=True)
    (done / "model_optim_rng.pt").write_bytes(b"\x80\x02 of an old release")
    (tmp_path / "iter_0000030").mkdir()
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    result = CliRunner().invoke(app, [str(tmp_path), "--format", "json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [set(row) for row in rows] == [{"iteration", "format", "verdict", "reason"}] * 2
    assert [(row["iteration"], row["format"], row["verdict"]) for row in rows] == [
        (20, "torch", "complete"),
        (30, "unknown", "incomplete"),
    ]


def test_no_checkpoint_and_no_folder(tmp_path: Path) -> None:
    assert json.loads(CliRunner().invoke(app, [str(tmp_path), "--format", "json"]).stdout) == []
    absent = CliRunner().invoke(app, [str(tmp_path / "x")])
    assert absent.exit_code == 1
    assert "is not a folder" in absent.stderr
