"""One TensorBoard for the event files of a sweep."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_megatron.cli.runs.tensorboard import (
    TensorboardError,
    event_folders,
    events_script,
    found_by,
    tensorboard_command,
    tunnel_command,
    with_events,
)
from airflow_megatron.hooks.connection_options import ConnectionOptions
from airflow_megatron.spec.documents import project

if TYPE_CHECKING:
    from login_site import LoginSite

TRAINING = """\
name: study
cluster: site
point: "lr{{ lr }}"
megatron: {seq_length: 128, global_batch_size: 16, micro_batch_size: 8, train_iters: 10, save_interval: 10,
  lr_decay_style: constant, num_layers: 2, hidden_size: 64, num_attention_heads: 4, max_position_embeddings: 128,
  mock_data: true, tokenizer_type: NullTokenizer, vocab_size: 100}
sweep: {lr: [1e-3, 4e-3]}
stages:
  pretrain: {kind: train}
"""


def folder_with_events(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.1.host.1.0").touch()
    return folder


@pytest.mark.slow
def test_one_tensorboard_shows_all_points_with_event_files(site: LoginSite) -> None:
    site.spec.write_text(TRAINING)
    python = site.place / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    profile = project.project_root() / "sbatch" / "clusters" / "site.yaml"
    profile.write_text(profile.read_text().replace("/usr/bin/python3", str(python)))
    jobs = site.run_sweep("manual__1")
    nothing = site.call("tensorboard", "study")
    assert nothing.status == 1
    assert "study has no event files yet in 2 folders" in nothing.stderr
    folders = event_folders(jobs)
    assert [*folders] == ["lr0.001/pretrain", "lr0.004/pretrain"]
    written = folder_with_events(Path(folders["lr0.004/pretrain"]))
    shown = site.call("tensorboard", "study", "--print")
    expected = [
        *(str(python), "-m", "tensorboard.main", "--logdir_spec", f"lr0.004/pretrain:{written}"),
        *("--host", "127.0.0.1", "--port", "6006"),
    ]
    assert shlex.split(shown.stdout) == expected
    assert site.call("tensorboard", "study", "--run", "manual__1").status == 0
    missing = site.call("tensorboard", "study", "--points", "other*")
    assert "no training of these points writes event files" in missing.stderr


def test_the_folders_of_a_cluster_are_found_by_its_shell(tmp_path: Path) -> None:
    names = ["plain", "with space", "it's", "$(touch x)", "st*r", "-dash"]
    folders = {f"p/{number}": str(tmp_path / name) for number, name in enumerate(names)}
    for number, folder in enumerate(folders.values()):
        Path(folder).mkdir() if number == 1 else folder_with_events(Path(folder))
    done = subprocess.run(
        ["sh", "-c", events_script(folders)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    answer = f"welcome am-events 1\n{done.stdout}am-events 77\n"
    assert found_by(folders, answer) == {name: each for name, each in folders.items() if name != "p/1"}
    assert with_events(folders) == found_by(folders, answer)
    assert not (tmp_path / "x").exists()


def test_the_tunnel_is_one_command_for_any_folder_names() -> None:
    command = tensorboard_command("/opt/py thon", {"a/b": "/runs/it's here"}, 7007)
    words = shlex.split(tunnel_command(ConnectionOptions("c", "login.example", 2222, "me"), command, 7007))
    assert words[:-1] == ["ssh", "-t", "-L", "7007:127.0.0.1:7007", "-p", "2222", "me@login.example"]
    assert shlex.split(words[-1]) == command
    assert shlex.split(tunnel_command(ConnectionOptions("c", "login"), ["x"], 1))[-2] == "login"


def test_names_that_tensorboard_does_not_support_are_refused() -> None:
    for folder in ("/runs/a,b", "/runs/a:b"):
        with pytest.raises(TensorboardError, match="comma or colon"):
            tensorboard_command("python", {"p/s": folder}, 6006)
    many = {f"p{number}/s": f"/runs/{number}/{'x' * 200}" for number in range(600)}
    with pytest.raises(TensorboardError, match="choose some with --points"):
        tensorboard_command("python", many, 6006)
