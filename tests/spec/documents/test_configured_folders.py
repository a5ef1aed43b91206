from __future__ import annotations

from pathlib import Path

import pytest

from airflow_megatron.get_provider_info import CONFIGURATION_OPTIONS
from airflow_megatron.plan.sweep_cluster import sweep_clusters
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.documents.configuration import (
    OPTIONS,
    airflow_home,
    configured,
    option_variable,
)
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.shipped_files import FOLDERS, checkout, shipped
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Airflow's home, without other settings in the environment."""
    for option in OPTIONS:
        monkeypatch.delenv(option_variable(option), raising=False)
    for name in (project.HOME_VARIABLE, project.SWEEP_SPECS_VARIABLE, "AIRFLOW_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "airflow"
    folder.mkdir()
    monkeypatch.setenv("AIRFLOW_HOME", str(folder))
    return folder


def test_the_checkout_is_the_default() -> None:
    root = checkout()
    assert root == Path(project.__file__).parents[3]
    assert project.sweep_specs_dir() == root / "sweep_specs"
    assert project.clusters_dir() == root / "sbatch" / "clusters"
    assert project.templates_dir() == root / "sbatch"
    assert all(shipped(name) == root / name for name in FOLDERS)


FOLDER_OPTIONS = [
    ("sweep_specs_folder", project.sweep_specs_dir),
    ("clusters_folder", project.clusters_dir),
    ("templates_folder", project.templates_dir),
]


@pytest.mark.parametrize(("option", "folder"), FOLDER_OPTIONS)
def test_the_environment_wins_over_the_file(option, folder, home: Path, monkeypatch) -> None:
    (home / "airflow.cfg").write_text(f"[core]\ndags_folder = /x\n\n[megatron]\n{option} = /of/file\n")
    assert folder() == Path("/of/file")
    monkeypatch.setenv(option_variable(option), "/of/environment")
    assert folder() == Path("/of/environment")


def test_an_unknown_option_is_named_once(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / "airflow.cfg").write_text("[megatron]\nsweep_spec_folder = /x\nowner = y\nresults_url = z\n")
    for _ in range(2):
        project.sweep_specs_dir()
    assert sorted(caplog.messages) == [
        f"{home}/airflow.cfg: [megatron] has no option 'owner' (its options: {', '.join(OPTIONS)})",
        f"{home}/airflow.cfg: [megatron] has no option 'sweep_spec_folder' (did you mean 'sweep_specs_folder'?)",
    ]


def test_all_options_of_the_provider_are_known() -> None:
    assert set(OPTIONS) == CONFIGURATION_OPTIONS.keys()


@pytest.mark.parametrize("option", ["clusters_folder", "templates_folder"])
def test_a_folder_that_does_not_exist_is_refused(option: str, home: Path) -> None:
    (home / "airflow.cfg").write_text(f"[megatron]\n{option} = gone\n")
    with pytest.raises(SpecError) as caught:
        load_cluster("local")
    assert str(caught.value) == (
        f"{home / 'gone'}: {option} in [megatron] is not a folder (create it, or correct the option)"
    )
    spec = checkout() / "sweep_specs" / "quickstart.yaml"
    with pytest.raises(SpecError, match=rf"{option} in \[megatron\] is not a folder"):
        sweep_clusters(load_sweep(spec))


@pytest.mark.parametrize(("option", "folder"), FOLDER_OPTIONS)
def test_a_changed_file_is_read_again(option, folder, home: Path) -> None:
    for name in ("/first", "/the/second"):
        (home / "airflow.cfg").write_text(f"[megatron]\n{option} = {name}\n")
        assert folder() == Path(name)


@pytest.mark.parametrize(("option", "folder"), FOLDER_OPTIONS)
def test_values_are_expanded_as_airflow_does(option, folder, home: Path, monkeypatch) -> None:
    monkeypatch.setenv("OUR_PLACE", "$AIRFLOW_HOME/ours")
    monkeypatch.setenv("HOME", "/home/me")
    for value, expected in (
        ("$OUR_PLACE/x", home / "ours" / "x"),
        ("~/x", Path("/home/me/x")),
        ("relative/x", home / "relative" / "x"),
        ("100%%/x", home / "100%" / "x"),
    ):
        (home / "airflow.cfg").write_text(f"[megatron]\n{option} = {value}\n")
        assert folder() == expected


def test_another_file_may_be_named(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "airflow.cfg").write_text("[megatron]\nclusters_folder = /wrong\n")
    (tmp_path / "other.cfg").write_text("[megatron]\nclusters_folder = /right\n")
    monkeypatch.setenv("AIRFLOW_CONFIG", str(tmp_path / "other.cfg"))
    assert project.clusters_dir() == Path("/right")


@pytest.mark.parametrize(
    "text", ["[megatron\n", "clusters_folder = /x\n", "[megatron]\nx = %(y)s\n", "\0[\xff"]
)
def test_a_file_that_cannot_be_read(text: str, home: Path) -> None:
    (home / "airflow.cfg").write_text(text, encoding="latin-1")
    with pytest.raises(SpecError, match=r"airflow\.cfg.*Airflow's configuration cannot be read"):
        configured("clusters_folder")


def test_the_old_variable_still_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(option_variable("sweep_specs_folder"), "/new")
    monkeypatch.setenv(project.SWEEP_SPECS_VARIABLE, "/old")
    assert project.sweep_specs_dir() == Path("/old")


def test_airflows_own_default_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert airflow_home() == Path("/home/me/airflow")


def test_a_project_without_templates_uses_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("clusters", "sweep_specs"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    assert project.clusters_dir() == tmp_path / "clusters"
    assert project.sweep_specs_dir() == tmp_path / "sweep_specs"
    assert project.templates_dir() == shipped("sbatch")
    assert project.job_programs_dir() == shipped("Megatron-LM")


def test_another_home_gets_the_same_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(option_variable("clusters_folder"), str(tmp_path / "ours"))
    here = (project.clusters_dir(), project.sweep_specs_dir(), project.local_dir())
    variables = project.project_variables()
    monkeypatch.delenv(option_variable("clusters_folder"))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "another"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (project.clusters_dir(), project.sweep_specs_dir(), project.local_dir()) == here


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("[megatron]\n[core]\n[megatron]\nclusters_folder = /c\n", "write its options below the first one"),
        ("[megatron]\nclusters_folder = /c\nclusters_folder = /d\n", "keep one of the two lines"),
    ],
)
def test_what_occurs_twice_in_the_configuration(
    text: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "airflow.cfg").write_text(text)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW_CONFIG", raising=False)
    monkeypatch.delenv(option_variable("clusters_folder"), raising=False)
    with pytest.raises(SpecError, match=hint):
        configured("clusters_folder")


def test_folders_in_variables_are_expanded_and_absolute(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my project" / "clusters").mkdir(parents=True)
    for written in ("~/my project", "my project", "$HOME/my project"):
        monkeypatch.setenv(project.HOME_VARIABLE, written)
        assert project.project_root() == tmp_path / "my project"
    monkeypatch.setenv(project.LOCAL_VARIABLE, "~/state")
    monkeypatch.setenv(project.SWEEP_SPECS_VARIABLE, "~/specs")
    assert project.pins_dir() == tmp_path / "state" / "pins"
    assert project.sweep_specs_dir() == tmp_path / "specs"
    monkeypatch.setenv(project.PINS_VARIABLE, "~/pins")
    assert project.pins_dir() == tmp_path / "pins"
