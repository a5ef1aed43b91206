"""The recipes of CONTRIBUTING.md, executed from the blocks on the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from command_line import runner
from example_specs import CHAIN

from airflow_megatron.megatron.checkpoints.completeness import _trainers_with_layouts, checkpoint_verdict
from airflow_megatron.megatron.logs.log_lines import LogParser
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.signatures import find_signature, site_catalogue
from airflow_megatron.spec.documents.configuration import CLUSTERS_FOLDER, option_variable
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.model.launch import CONTAINER_RUNTIMES, LAUNCHERS
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.model.trainers import TRAINERS
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = project_root() / "CONTRIBUTING.md"
MOST_FILES = 3
_BLOCK = re.compile(r"(?:^`(?P<file>[\w./-]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
_INDENTED = re.compile(r"^ {4}(.*)$", re.M)


def recipe(title: str) -> str:
    """Return the text of a recipe."""
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^### |\Z)", PAGE.read_text(), re.M | re.S)
    assert found, f"there is no recipe {title!r}"
    return found[1]


def files(title: str) -> dict[str, str]:
    """Return the files of a recipe, name → content."""
    found = {match["file"]: match["text"] for match in _BLOCK.finditer(recipe(title)) if match["file"]}
    assert 1 <= len(found) <= MOST_FILES
    return found


def part(title: str) -> dict[str, Any]:
    """Return the YAML of a recipe that is part of a file of the user's."""
    (found,) = (
        match["text"]
        for match in _BLOCK.finditer(recipe(title))
        if match["language"] == "yaml" and not match["file"]
    )
    content: dict[str, Any] = yaml.safe_load(found)
    return content


def indented(title: str) -> list[str]:
    """Return the lines of a recipe that are neither text nor in a fenced block."""
    return _INDENTED.findall(_BLOCK.sub("", recipe(title)))


def forget_what_is_installed() -> None:
    for registry in (STAGE_KINDS, TRAINERS, CONTAINER_RUNTIMES, LAUNCHERS):
        registry.__dict__.pop("_registered", None)
        for name in registry.objects.keys() - registry.built_in.keys():
            del registry.objects[name]
    _trainers_with_layouts.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Install the package of a recipe as pip does."""

    def installed(title: str) -> Path:
        place = tmp_path / "site-packages"
        for name, text in files(title).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        project = tomllib.loads((place / "pyproject.toml").read_text())["project"]
        metadata = place / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
        metadata.mkdir()
        head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
        (metadata / "METADATA").write_text(head)
        lines = [
            line
            for group, points in project["entry-points"].items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
        ]
        (metadata / "entry_points.txt").write_text("\n".join([*lines, ""]))
        monkeypatch.syspath_prepend(str(place))
        forget_what_is_installed()
        return place

    yield installed
    monkeypatch.undo()
    forget_what_is_installed()


def checked(spec: dict[str, Any], cluster: ClusterProfile) -> Plan:
    return check_sweep(load_sweep_text(yaml.safe_dump(spec, sort_keys=False), "s.yaml"), cluster)


def spec_with(**changes: Any) -> dict[str, Any]:
    spec = yaml.safe_load(CHAIN) | changes
    spec["megatron"]["lr_decay_style"] = "constant"
    return spec


@pytest.mark.usefixtures("install")
def test_without_the_package_the_kind_is_unknown(cluster: ClusterProfile) -> None:
    spec = spec_with()
    spec["stages"] |= part("A stage kind")["stages"]
    with pytest.raises(SpecError, match=r"stages\.archive\.kind is 'archive' \(expected one of 'train',"):
        checked(spec, cluster)


@pytest.mark.slow
def test_a_stage_kind(cluster: ClusterProfile, install: Callable[[str], Path], tmp_path: Path) -> None:
    install("A stage kind")
    cluster = cluster.model_copy(update={"run_root": str(tmp_path / "runs")})
    spec = spec_with()
    spec["stages"] |= part("A stage kind")["stages"]
    plan = checked(spec, cluster)
    job = next(job for job in plan.jobs if job.kind == "archive" and job.branch == "pretrain")
    assert [dependency.stage for dependency in job.depends_on] == ["pretrain.convert"]
    model = Path(job.layout.model_dir(job.iteration))
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    subprocess.run(job.command, check=True)
    (output,) = job.outputs
    with tarfile.open(output) as packed:
        assert "./config.json" in packed.getnames()
    script = job_script(job, cluster, 1)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert f"tar -czf {output}" in script
    # its own template, pinned with a run, and the project's in place of it
    assert "\nulimit -n 65536\n" in script
    around = PlanEnvironment.now(cluster)
    pinned = around.to_json([job])["templates"]
    assert job_script(job, cluster, 1, templates=pinned) == script
    own = tmp_path / "templates"
    own.mkdir()
    (own / "archive.sbatch.j2").write_text('{% extends "command.sbatch.j2" %}')
    assert "ulimit" not in job_script(job, cluster, 1, templates=own)
    assert replace(around, templates=pinned).changes(replace(around, templates=own)) == [
        "sbatch/archive.sbatch.j2"
    ]
    # each model unchanged, with its own check, and with misspelt params
    spec["stages"]["convert"]["each_checkpoint"] = True
    spec["stages"]["archive"] |= {"each_checkpoint": True, "params": {"compres": True}}
    plan = checked(spec, cluster)
    job = next(job for job in plan.jobs if job.kind == "archive")
    assert any(word.endswith("/each_checkpoint.py") for word in job.command)
    assert "archive does not read compres" in str(plan.warnings)
    spec["stages"]["archive"]["params"] = {"compress": "xz"}
    with pytest.raises(SpecError, match=r"compress is 'xz'.*write true or false"):
        checked(spec, cluster)


@pytest.mark.slow
def test_a_trainer(
    cluster: ClusterProfile,
    install: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = install("A trainer")
    (command,) = (line for line in indented("A trainer") if line.startswith("airflow-megatron "))
    words = [word.replace("CHECKOUT", str(project_root() / "Megatron-LM")) for word in command.split()[1:]]
    monkeypatch.chdir(place)
    assert runner(monkeypatch, capsys)(*words).status == 0
    table = json.loads((place / "our_trainer" / "arguments.json").read_text())
    assert [*table["releases"]] == ["our_trainer"]
    cluster = cluster.model_copy(update={"gpu": "h100-80gb"})
    profile = cluster.model_dump(exclude_unset=True, exclude={"name"}) | part("A trainer")
    cluster = ClusterProfile(name="alps", **profile)
    plan = checked(spec_with(trainer="our_trainer"), cluster)
    job = next(job for job in plan.jobs if job.stage == "pretrain")
    assert job.command[:2] == ("/opt/venv/bin/python", "/project/our-trainer/train.py")
    assert job.command[job.command.index("--data-cache-path") + 1] == f"{job.run_dir}/data_cache"
    assert plan.estimates.missing[job.name] == "our trainer shards models differently from Megatron-LM"
    script = job_script(job, cluster, 1)
    assert "/project/our-trainer/train.py" in script
    line = (
        b" [2026-01-02 03:04:05] iteration       10/     300 | consumed samples:          160 |"
        b" seconds per iteration (ms): 250.0 | learning rate: 1.000000E-03 | global batch size:    16 |"
        b" lm loss: 4.500000E+00 | loss scale: 1.0 | number of skipped iterations:   0 |\n"
    )
    done = checkpoint_verdict({"0.shard": 1, "DONE": 1})
    assert (done.verdict, done.format) == ("complete", "our_trainer")
    assert checkpoint_verdict({"0.shard": 1}).verdict == "incomplete"
    assert checkpoint_verdict({"model.pt": 1}).format == "unknown"
    (record,) = LogParser().feed(line)
    assert record.elapsed_ms == 250.0  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_container_runtime(cluster: ClusterProfile, install: Callable[[str], Path]) -> None:
    title = "A container runtime, a launcher"
    install(title)
    profile = cluster.model_dump(exclude_unset=True, exclude={"name"}) | part(title)
    cluster = ClusterProfile(name="alps", **profile)
    plan = checked(spec_with(), cluster)
    for job in plan.jobs:
        script = job_script(job, cluster, 1)
        assert "am_run ch-run --bind /scratch/me /images/pytorch -- " in script
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_a_quirk_of_a_sites_slurm() -> None:
    title = "A quirk of a site's Slurm"
    ((name, row),) = files(title).items()
    (line,) = indented(title)
    own: dict[str, Any] = {}
    for content, text in (("before", ""), ("after", row)):
        changed = (project_root() / name).read_text().replace("_HINTS = (\n", f"_HINTS = (\n{text}", 1)
        assert text in changed
        names: dict[str, Any] = {}
        exec(compile(changed, name, "exec"), names)
        own[content] = names["refusal_hint"](line)
    assert own == {
        "before": "",
        "after": "name another slurm.account; `jutil user projects` lists yours",
    }


def test_a_failure_signature(
    cluster: ClusterProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "A failure signature"
    profile = cluster.model_dump(exclude_unset=True, exclude={"name"})
    for name, text in files(title).items():
        own = yaml.safe_load(text)
        content = own if name.endswith("-signatures.yaml") else profile | own
        (tmp_path / os.path.basename(name)).write_text(yaml.safe_dump(content))  # noqa: PTH119
    monkeypatch.setenv(option_variable(CLUSTERS_FOLDER), str(tmp_path))
    (line,) = indented(title)
    catalogue = site_catalogue(tuple(load_cluster("mycluster").signatures))
    finding = find_signature(catalogue, line.encode(), JobState.FAILED)
    assert finding is not None
    assert (finding.signature.name, finding.node) == ("burst_buffer", "jwb0042")
    assert finding.signature.outcome is Outcome.RETRYABLE


def test_the_commands_of_a_release_exist() -> None:
    makefile = (project_root() / "Makefile").read_text()
    for line in indented("A release of Megatron-LM"):
        word = line.split()[0]
        assert (project_root() / word).is_file() or re.search(rf"^{line.split()[1]}:", makefile, re.M), line
    for path in re.findall(
        r"`((?:airflow_megatron|Megatron-LM|tests)/[\w./-]+)`", recipe("A release of Megatron-LM")
    ):
        assert (project_root() / path.replace("RELEASE", "core_v0.18.0")).exists(), path
