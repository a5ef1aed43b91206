"""``<file>.airflow.yml`` beside a file of another tool, and ``--set`` for the same keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.model.schema import HealthSection
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text, lone_sidecars, spec_files

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep

OELLM = """\
job: {name: "m_${backend.megatron.lr}", base_output_dir: "out/${.name}"}
backend:
  class_name: MegatronBackend
  megatron: {num_layers: 2, lr: 1e-3, train_iters: 100, save_interval: 50}
slurm:
  sbatch: {nodes: 1, gpus_per_node: 2, time: "01:00:00"}
sweep:
  type: product
  groups:
    - params: {backend.megatron.lr: [1e-3, 2e-3]}
"""
AUTOEXPERIMENT = """\
template: job.sbatch
LR: [1, 2]
name: "s_{LR}"
output_file: "logs/{name}.out"
cmd: "sbatch {sbatch_script}"
sbatch_script: "scripts/{name}.sbatch"
"""
FOREIGN = {"oellm": OELLM, "autoexperiment": AUTOEXPERIMENT}


@pytest.fixture(params=FOREIGN)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --job-name={name}\necho {LR}\n")
    path = tmp_path / "study.yaml"
    path.write_text(FOREIGN[request.param])
    return path


def beside(file: Path, text: str, name: str = "study.yaml.airflow.yml") -> Path:
    sidecar = file.parent / name
    sidecar.write_text(text)
    return sidecar


def jobs_of(sweep: Sweep) -> list[Job]:
    cluster = load_cluster("local")
    return [job for point in sweep.points for job in sweep.jobs(point, cluster)]


SIDECAR = """\
name: mine
description: what it is for
cluster: example-slurm
trainer: megatron_deepspeed
release: core_v0.18.2
restart: {failed: 2, backoff: 5}
max_active_points: 3
max_jobs: 7
poll_interval: 20
tags: [llm]
notify:
  - {notifier: airflow_megatron.notifications.printed.PrintedNotifier, on: [finished]}
"""


@pytest.mark.parametrize("name", ["study.yaml.airflow.yml", "study.airflow.yml", "study.yaml.airflow.yaml"])
def test_gives_what_the_file_cannot_say(file: Path, name: str) -> None:
    beside(file, SIDECAR, name)
    sweep = load_sweep(file)
    settings = sweep.settings
    assert sweep.name == "mine"
    assert (settings.cluster, settings.description, settings.tags) == (
        "example-slurm",
        "what it is for",
        ("llm",),
    )
    assert (settings.max_active_points, settings.max_jobs, settings.poll_interval) == (3, 7, 20)
    assert [section.on for section in settings.notify] == [["finished"]]
    for job in jobs_of(sweep):
        assert (job.trainer, job.release, job.max_jobs) == ("megatron_deepspeed", "core_v0.18.2", 7)
        assert (job.restart.failed, job.restart.backoff) == (2, 5)


def test_keeps_what_it_does_not_name_of_a_restart_policy(file: Path) -> None:
    before = jobs_of(load_sweep(file))[0].restart
    beside(file, "restart: {out_of_memory: 4}")
    after = jobs_of(load_sweep(file))[0].restart
    assert after == before.model_copy(update={"out_of_memory": 4})


def test_health_is_of_trainings(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(OELLM)
    beside(file, "health: {nan: {do: cancel}}")
    (health,) = {job.health.nan.do for job in jobs_of(load_sweep(file)) if job.health}
    assert health == "cancel"
    assert HealthSection().nan.do != "cancel"
    beside(file, "health: off")
    assert {job.health for job in jobs_of(load_sweep(file))} == {None}


def test_is_no_spec(file: Path) -> None:
    beside(file, SIDECAR)
    beside(file, SIDECAR, "other.airflow.yaml")
    assert spec_files(file.parent) == [file]


def test_is_not_read_as_one(file: Path) -> None:
    sidecar = beside(file, "max_jobs: 7")
    with pytest.raises(SpecError, match="no spec"):
        load_sweep(sidecar)


def test_stands_among_the_sources_of_the_sweep(file: Path) -> None:
    sidecar = beside(file, "max_jobs: 7")
    sweep = load_sweep(file)
    assert sweep.document.sources[str(sidecar)] == "max_jobs: 7"
    sidecar.write_text("max_jobs: 9")
    again = load_sweep_text(file.read_text(), str(file), sweep.document.sources)
    assert again.settings.max_jobs == 7


MISTAKES = {
    "a misspelt key": ("cluster: local\nrestrat: {failed: 1}\n", ":2:1", "did you mean 'restart'?"),
    "a misspelt key within": ("restart:\n  fialed: 1\n", ":2:3", "did you mean 'failed'?"),
    "a wrong value": ("max_jobs: many\n", ":1:1", "a whole number"),
    "nothing": ("max_jobs: 0\n", ":1:1", "greater than or equal to 1"),
    "no end": ("poll_interval: .inf\n", ":1:1", "less than or equal to 86400"),
    "a trainer that does not exist": ("trainer: megatron\n", ":1:1", "megatron_lm"),
    "what the file itself says": ("slurm: {nodes: 2}\n", ":1:1", "unknown key 'slurm'"),
    "no mapping": ("- a\n", ":1:1", "expected keys with values"),
    "no YAML": ("a: [\n", ":2:1", "not valid YAML"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_have_a_place_in_it(file: Path, mistake: str) -> None:
    text, place, message = MISTAKES[mistake]
    sidecar = beside(file, text)
    with pytest.raises(SpecError) as error:
        load_sweep(file)
    assert f"{sidecar}{place}" in str(error.value)
    assert message in str(error.value)


def test_later_messages_point_at_it(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(OELLM)
    sidecar = beside(file, "max_jobs: 4\nrelease: core_v0.16.9\n")
    with pytest.raises(SpecError) as error:
        check_sweep(load_sweep(file), load_cluster("local"))
    assert f"{sidecar}:2:1" in str(error.value)


def test_two_are_refused(file: Path) -> None:
    beside(file, "max_jobs: 1")
    beside(file, "max_jobs: 2", "study.airflow.yml")
    with pytest.raises(SpecError, match=r"study\.yaml\.airflow\.yml and study\.airflow\.yml"):
        load_sweep(file)


def test_a_native_spec_takes_none(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text("point: p\nstages: {a: {kind: command, command: [true]}}\n")
    beside(file, "max_jobs: 1")
    with pytest.raises(SpecError, match="takes no sidecar"):
        load_sweep(file)


def test_settings_give_the_same(file: Path) -> None:
    beside(file, "max_jobs: 3\ncluster: local")
    given = ["cluster=example-slurm", "trainer=megatron_core", "restart.failed=1"]
    sweep = load_sweep(file, given)
    assert (sweep.settings.cluster, sweep.settings.max_jobs) == ("example-slurm", 3)
    assert {(job.trainer, job.restart.failed) for job in jobs_of(sweep)} == {("megatron_core", 1)}


def test_settings_of_the_file_stay_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(OELLM)
    (job, _) = jobs_of(load_sweep(file, ["slurm.sbatch.nodes=3", "backend.megatron.num_layers=4"]))
    assert (job.slurm.nodes, job.params["num_layers"]) == (3, 4)
    file.write_text(AUTOEXPERIMENT.replace("LR: [1, 2]", "LR: [1, 2]\ntrainer: x"))
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --job-name={name}\necho {trainer}\n")
    assert {job.params["trainer"] for job in jobs_of(load_sweep(file, ["trainer=y"]))} == {"y"}


def test_misspelt_settings_get_a_near_name(file: Path) -> None:
    with pytest.raises(SpecError, match=r"--set trianer=x.*did you mean 'trainer'"):
        load_sweep(file, ["trianer=x"])


def test_a_new_variable_in_capitals_is_no_misspelt_setting(file: Path) -> None:
    sweep = load_sweep(file, ["TRAIN_ITERS=3"])
    if "backend" not in sweep.document.data:
        assert {job.params["TRAIN_ITERS"] for job in jobs_of(sweep)} == {3}


def test_oellm_files_are_trained_by_upstreams_megatron(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(OELLM)
    assert {job.trainer for job in jobs_of(load_sweep(file))} == {"megatron_lm"}


def test_a_sidecar_may_name_several_clusters(file: Path) -> None:
    beside(file, "cluster: [local, example-slurm]\n")
    settings = load_sweep(file).settings
    assert settings.all_clusters == ("local", "example-slurm")
    assert settings.cluster == "local"
    for one in ("cluster=example-slurm", "cluster=[example-slurm]"):
        settings = load_sweep(file, [one]).settings
        assert (settings.cluster, settings.clusters) == ("example-slurm", ())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("study.yaml.airflow.yml", ""),
        ("study.airflow.yml", ""),
        (
            "studi.yaml.airflow.yml",
            "the sidecar of studi.yaml, which does not exist (did you mean 'study.yaml'?)",
        ),
        ("other.airflow.yaml", "the sidecar of other.yaml, which does not exist (rename it after its file)"),
    ],
)
def test_one_without_its_file_is_named(name: str, problem: str, file: Path) -> None:
    beside(file, "cluster: local\n", name)
    told = lone_sidecars(file.parent)
    assert len(told) == bool(problem)
    assert all(problem in str(one) for one in told)


def test_what_has_no_effect_on_a_script_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --job-name={name}\necho {LR}\n")
    file = tmp_path / "study.yaml"
    file.write_text(f"{AUTOEXPERIMENT}termination_str: done\n")
    beside(file, "max_jobs: 2\ncontainer: profile\nrelease: core_v0.16.1\nhealth: off\n")
    (warning,) = load_sweep(file).warnings()
    assert warning.message.startswith("release, container: no effect, since every job runs a script")
    assert (warning.file, warning.line) == (f"{file}.airflow.yml", 3)
    file.write_text(OELLM)
    assert "no effect" not in str(load_sweep(file).warnings())


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        ("restart: {chain: 3}\n", ["restart.chain: no effect"]),
        (
            "restart:\n  nodes: [1]\n  after_rollback: {lr: 1}\n",
            ["restart.nodes, restart.after_rollback: no effect"],
        ),
        ("restart: {chain: 1, failed: 2}\n", []),
    ],
)
def test_restarts_of_trainings_have_no_effect_on_scripts(
    text: str, unused: list[str], tmp_path: Path
) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\necho {LR}\n")
    file = tmp_path / "study.yaml"
    file.write_text(AUTOEXPERIMENT)
    beside(file, text)
    messages = [problem.message for problem in load_sweep(file).warnings()]
    assert [text.partition(", since")[0] for text in messages if "no effect" in text] == unused


@pytest.mark.parametrize("value", ["{failed: 2}", "{failed: 2, chain: 3}"])
def test_a_section_of_the_sidecar_in_the_file_names_the_sidecar(value: str, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\necho {LR}\n")
    file = tmp_path / "study.yaml"
    file.write_text(f"{AUTOEXPERIMENT}restart: {value}\n")
    (found,) = [problem for problem in load_sweep(file).warnings() if "nor another value" in problem.message]
    assert (found.line, found.hint) == (7, "write restart into the sidecar, study.yaml.airflow.yml")
