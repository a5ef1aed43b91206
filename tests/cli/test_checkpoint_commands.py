from __future__ import annotations

import json
import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

from airflow_megatron.cli import checkpoint_commands
from airflow_megatron.cli.checkpoint_commands import checkpoints
from airflow_megatron.cli.runs import login_node
from airflow_megatron.slurm.remote.transport import CommandResult

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer()
app.command()(checkpoints)


@pytest.mark.slow
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


@pytest.mark.parametrize("words", [[], ["DIR", "--cluster", "local"]])
def test_a_folder_or_a_cluster(words: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path) if word == "DIR" else word for word in words])
    assert result.exit_code == 2
    assert "give either DIR or --cluster NAME" in result.stderr


@pytest.mark.slow
def test_all_runs_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs for real, here instead of on a login node."""
    checkpoints = tmp_path / "sweep" / "lr1" / "checkpoints"
    (checkpoints / "iter_0000020").mkdir(parents=True)
    for name in (".metadata", "metadata.json", "__0_0.distcp"):
        (checkpoints / "iter_0000020" / name).write_bytes(b"x")

    def run(script: str) -> CommandResult:
        done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    monkeypatch.setattr(
        checkpoint_commands, "load_cluster", lambda name: SimpleNamespace(run_root=str(tmp_path))
    )
    monkeypatch.setattr(login_node, "command_line_hook", lambda cluster: SimpleNamespace(run=run))
    for words, named in (
        (["--cluster", "x"], "sweep/lr1"),
        (["--cluster", "x", "--sweep", "sweep"], "sweep/lr1"),
    ):
        result = CliRunner().invoke(app, [*words, "--format", "json"])
        assert result.exit_code == 0, result.stderr
        (row,) = json.loads(result.stdout)
        assert (row["run"], row["iteration"], row["verdict"]) == (named, 20, "complete")
    assert CliRunner().invoke(app, ["--cluster", "x"]).stdout.startswith("sweep/lr1          20  torch_dist")
    absent = CliRunner().invoke(app, ["--cluster", "x", "--sweep", "other"])
    assert (absent.exit_code, "no folder" in absent.stderr) == (1, True)
