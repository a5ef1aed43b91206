from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from command_line import runner

from airflow_megatron.cli.local.local_connection import connection_command, local_connections
from airflow_megatron.cli.setup.new_project import site_names
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.documents.configuration import option_variable
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.trust.permitted_variables import SETTING

VARIABLES = {
    "SLURM_ACCOUNT": "project_1",
    "SLURM_QOS": "acc_1",
    "OUTPUT_DIR": "/scratch/project_1",
    "CONTAINER_CACHE_DIR": "/scratch/images",
    "HF_HOME": "/scratch/hf",
}

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from command_line import Answer

FILES = [
    *("clusters/example-slurm.yaml", "clusters/local.yaml"),
    *("dags/sweep_spec_errors.py", "dags/sweeps.py"),
    "sweep_specs/first_sweep.yaml",
]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Answer]:
    for name in (project.HOME_VARIABLE, project.SWEEP_SPECS_VARIABLE, "AIRFLOW__CORE__DAGS_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))
    return runner(monkeypatch, capsys)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_project_is_made_whole(call: Callable[..., Answer], tmp_path: Path) -> None:
    answer = call("init", str(tmp_path / "a project"))
    assert answer.status == 0
    assert files(tmp_path / "a project") == FILES
    assert all(f"wrote {tmp_path / 'a project' / name}" in answer.stdout for name in FILES)
    for name in ("sweeps.py", "sweep_spec_errors.py"):
        assert (tmp_path / "a project" / "dags" / name).read_text() == (shipped("dags") / name).read_text()
    assert "airflow connections add" in answer.stdout


def test_existing_files_are_kept(call: Callable[..., Answer], tmp_path: Path) -> None:
    call("init", str(tmp_path))
    (tmp_path / "clusters" / "local.yaml").write_text("mine")
    (tmp_path / "dags" / "sweeps.py").unlink()
    (tmp_path / "dags" / "sweeps.py").symlink_to("nowhere")
    (tmp_path / "sweep_specs" / "first_sweep.yaml").unlink()
    answer = call("init", str(tmp_path))
    assert answer.status == 0
    assert (tmp_path / "clusters" / "local.yaml").read_text() == "mine"
    assert (tmp_path / "dags" / "sweeps.py").is_symlink()
    assert answer.stdout.count("wrote ") == 1
    assert answer.stdout.count("kept ") == len(FILES) - 1


def test_the_profile_of_a_site_is_written_too(call: Callable[..., Answer], tmp_path: Path) -> None:
    answer = call("init", str(tmp_path), "--site", "lumi-g", "--site", "vista")
    assert answer.status == 0
    assert files(tmp_path) == sorted([*FILES, "clusters/lumi-g.yaml", "clusters/vista.yaml"])
    assert (tmp_path / "clusters" / "vista.yaml").read_text() == (
        shipped("sbatch") / "sites" / "vista.yaml"
    ).read_text()


@pytest.mark.parametrize("site", site_names())
def test_the_first_sweep_runs_on_the_site(
    site: str, call: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = call("init", str(tmp_path), "--site", site)
    connection = yaml.safe_load((tmp_path / "clusters" / f"{site}.yaml").read_text())["ssh_conn_id"]
    assert f"airflow connections add {connection} " in answer.stdout
    assert f"airflow-megatron cluster check {site}" in answer.stdout
    page = shipped("docs/sites") / f"{site}.md"
    assert page.is_file()
    assert f"The connection of {site} ({page}):" in answer.stdout
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(SETTING, ",".join(VARIABLES))
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    linted = call("lint", "first_sweep")
    assert linted.status == 0, linted.stderr
    assert "2 points, 5 jobs" in linted.stdout
    assert f"cluster: {site} " in (tmp_path / "sweep_specs" / "first_sweep.yaml").read_text()


def test_a_site_that_is_named_twice_is_written_once(call: Callable[..., Answer], tmp_path: Path) -> None:
    answer = call("init", str(tmp_path), "--site", "vista", "--site", "vista")
    assert answer.stdout.count(str(tmp_path / "clusters" / "vista.yaml")) == 1
    assert answer.stdout.count("airflow connections add") == 1


def test_an_unknown_site_writes_nothing(call: Callable[..., Answer], tmp_path: Path) -> None:
    answer = call("init", str(tmp_path / "new"), "--site", "lumi")
    assert answer.status == 2
    assert "there is no shipped profile of a site 'lumi'" in answer.stderr
    assert "lumi-g" in answer.stderr
    assert not (tmp_path / "new").exists()


def test_the_command_that_it_prints_can_be_pasted(call: Callable[..., Answer], tmp_path: Path) -> None:
    folder = tmp_path / "it's ours"
    printed = call("init", str(folder)).stdout
    assert shlex.quote(str(folder / "clusters" / "example-slurm.yaml")) in printed
    command = next(line for line in printed.splitlines() if "--local-cluster" in line).partition(": ")[2]
    assert shlex.split(command) == ["airflow-megatron", "init", str(folder), "--local-cluster"]


@pytest.mark.parametrize("given", ["", " "])
def test_a_variable_that_is_not_set_is_no_folder(
    given: str, call: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call("init", given)
    assert answer.status == 2
    assert "it is empty" in answer.stderr
    assert files(tmp_path) == []


def test_a_folder_that_cannot_be_made(call: Callable[..., Answer], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = call("init", str(tmp_path / "file"))
    assert answer.status == 1
    assert answer.stderr.startswith(f"the project cannot be written: {tmp_path / 'file'}")
    assert "Errno" not in answer.stderr


def test_the_configuration_that_it_prints_is_all_that_airflow_needs(
    call: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "100% ours"
    printed = call("init", str(folder)).stdout
    lines = printed.partition("[core]")[2].partition("\n\n")[0]
    home = tmp_path / "airflow"
    home.mkdir(exist_ok=True)
    (home / "airflow.cfg").write_text(f"[core]{lines}\n")
    assert project.sweep_specs_dir() == folder / "sweep_specs"
    assert project.clusters_dir() == folder / "clusters"
    assert "[core]" not in call("init", str(folder)).stdout
    assert "[megatron]" not in call("init", str(folder)).stdout
    monkeypatch.setenv(option_variable("clusters_folder"), "/elsewhere")
    assert "[megatron]" in call("init", str(folder)).stdout


def test_sections_that_airflow_has_written_are_not_added_again(
    call: Callable[..., Answer], tmp_path: Path
) -> None:
    """Airflow writes all sections into a new ``airflow.cfg`` and does not start if one occurs twice."""
    home = tmp_path / "airflow"
    home.mkdir()
    (home / "airflow.cfg").write_text("[core]\n\n[megatron]\n# sweep_specs_folder =\n")
    printed = " ".join(call("init", str(tmp_path / "ours")).stdout.split())
    assert f"Set these options in {home / 'airflow.cfg'}, below the heads of the sections" in printed
    assert "a section must not occur twice" in printed
    assert "AIRFLOW__CORE__DAGS_FOLDER" in printed


@pytest.mark.slow
def test_the_first_sweep_is_right(
    call: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call("init", str(tmp_path))
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    answer = call("lint", "first_sweep")
    assert answer.status == 0, answer.stderr
    assert "2 points, 5 jobs" in answer.stdout
    text = (tmp_path / "sweep_specs" / "first_sweep.yaml").read_text()
    keys = yaml.safe_load(text)
    comments = [line for line in text.splitlines() if "#" in line]
    assert len(comments) >= len(keys), "every section is explained"


def test_the_connection_to_the_local_cluster() -> None:
    description = {
        "ssh": {
            "host": "127.0.0.1",
            "port": 2222,
            "user": "me",
            "key_file": "/it's/key",
            "host_key": "ssh-ed25519 AAAA",
        }
    }
    program = "import sys, json; print(json.dumps(sys.argv[1:]))"
    words = subprocess.run(
        ["sh", "-c", connection_command(description).replace("airflow", f'"$P" -c "{program}"', 1)],
        env={**os.environ, "P": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    given = yaml.safe_load(words.stdout)
    wanted = local_connections(description)["slurm_local"]
    assert given[:3] == ["connections", "add", "slurm_local"]
    assert dict(zip(given[3::2], given[4::2], strict=True)) == {
        "--conn-type": "ssh",
        "--conn-host": "127.0.0.1",
        "--conn-port": "2222",
        "--conn-login": "me",
        "--conn-extra": wanted["extra"],
    }


@pytest.mark.parametrize("words", [("lint", "first_sweep"), ("init", "new"), ("cluster", "check", "local")])
def test_a_variable_that_names_no_project_is_one_error(
    words: tuple[str, ...], call: Callable[..., Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path / "empty"))
    answer = call(*words)
    assert answer.status == 1
    assert answer.stderr == (
        f"{tmp_path / 'empty'} is not a project: it holds no sbatch/, clusters/ or sweep_specs/ folder; set "
        f"{project.HOME_VARIABLE} to the project's checkout, or to a project that `airflow-megatron init` has made\n"
    )
