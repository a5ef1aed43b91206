"""``rerun`` on a login node with the records of a run."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_megatron import __version__
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.slurm.verdicts.signatures import site_catalogue
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from login_site import LoginSite


@pytest.mark.slow
def test_the_spec_as_it_was_then(site: LoginSite) -> None:
    before = site.run_sweep("first")
    site.spec.write_text(site.spec.read_text().replace("[left, right]", "[up]"))
    answer = site.call("rerun", "first")
    assert answer.status == 0, answer.stderr
    path = site.spec.parent / "study-rerun.yaml"
    folder = site.place / "sbatch" / "clusters"
    written = [path, folder / "study-rerun.yaml", folder / "study-rerun.files"]
    wrote = "".join(f"wrote {each}\n" for each in written)
    assert f"{wrote}start it: airflow dags trigger study-rerun\n" in answer.stdout
    assert "differs: the programs of its jobs are not recorded" in answer.stdout
    assert "the command of" not in answer.stdout
    plan = check_sweep(load_sweep(path))
    assert [(job.point, job.stage, job.command) for job in plan.jobs] == [
        (job.point, job.stage, job.command) for job in before
    ]
    assert {job.run_dir for job in plan.jobs}.isdisjoint({job.run_dir for job in before})
    again = site.call("rerun", "study/first")
    assert f"wrote {site.spec.parent}/study-rerun2.yaml" in again.stdout


@pytest.mark.slow
def test_profile_and_templates_as_they_were_then(site: LoginSite) -> None:
    clusters = site.place / "sbatch" / "clusters"
    profile, template = clusters / "site.yaml", site.place / "sbatch" / "command.sbatch.j2"
    setup = "echo '{{ literally }}' {% raw \"\\ü"
    (clusters / "lines.yaml").write_text("signatures: []\n")
    profile.write_text(
        f"{profile.read_text()}setup: [{json.dumps(literal(setup))}]\nsignatures: [lines.yaml]\n"
    )
    before = {
        (job.point, job.stage): job_script(job, load_cluster("site"), 1) for job in site.run_sweep("first")
    }
    assert all(setup in script for script in before.values())
    profile.write_text(
        profile.read_text().replace("/usr/bin/python3", "/opt/new/python").replace("setup", "modules")
    )
    template.write_text(template.read_text().replace("am_run", "am_run nice"))
    (clusters / "lines.yaml").unlink()
    answer = site.call("rerun", "first")
    assert answer.status == 0, answer.stderr
    assert "sbatch/command" not in answer.stdout
    assert "cluster profile" not in answer.stdout
    plan = check_sweep(load_sweep(site.spec.parent / "study-rerun.yaml"))
    recorded = load_cluster(plan.cluster)
    after = {(job.point, job.stage): job_script(job, recorded, 1) for job in plan.jobs}
    same = {key: neutral(script, "study-rerun") for key, script in after.items()}
    assert same == {key: neutral(script, "study") for key, script in before.items()}
    assert site_catalogue(tuple(recorded.signatures))
    (clusters / "lines.yaml").write_text("signatures: []\n")
    today = site.call("rerun", "first", "--cluster", "site")
    assert "differs: sbatch/command.sbatch.j2\n" in today.stdout
    assert "differs: cluster profile site (modules, python, setup)\n" in today.stdout
    assert today.stdout.count("wrote ") == 1


@pytest.mark.slow
def test_a_refused_spec_leaves_no_files(site: LoginSite) -> None:
    site.run_sweep("first")
    (site.spec.parent / "again.yaml").write_text("name: again\n")
    assert site.call("rerun", "first", "--name", "again").status == 1
    assert not list((site.place / "sbatch" / "clusters").glob("again*"))


def literal(text: str) -> str:
    return f"{{{{ {json.dumps(text)} }}}}"


def neutral(script: str, sweep: str) -> str:
    """Return a script without the parts that depend on the name of its sweep."""
    return re.sub(r"\.[0-9a-f]{6}\b", "", re.sub(rf"\b{sweep}\b(?!-)", "<sweep>", script))


@pytest.mark.slow
def test_differences_to_the_current_state(site: LoginSite) -> None:
    job = site.run_sweep("first")[0]
    attempt = site.submitted(job, "101")
    record = {
        "package": "0.0.1",
        "checkouts": [{"path": "/opt/Megatron-LM", "commit": "a" * 40}],
        "environment": "ab12",
        "containers": [],
    }
    (attempt / "provenance.json").write_text(json.dumps(record))
    environments = site.runs / ".environments"
    environments.mkdir()
    (environments / "ab12.json").write_text(json.dumps({"packages": ["no-such-package==1.0"]}))
    profile = site.place / "sbatch" / "clusters" / "site.yaml"
    (profile.parent / "other.yaml").write_text(
        profile.read_text().replace(str(site.runs), f"{site.runs}/elsewhere")
    )
    answer = site.call("rerun", "first", "--cluster", "other", "--name", "again")
    assert answer.status == 0, answer.stderr
    assert "differs: cluster site, now other\n" in answer.stdout
    assert f"differs: airflow-megatron 0.0.1 → {__version__}\n" in answer.stdout
    assert "differs: /opt/Megatron-LM aaaaaaaaaaaa → /opt/Megatron-LM unknown\n" in answer.stdout
    # /usr/bin/python3 of this machine, as in the profile
    assert "no-such-package 1.0 → not installed" in answer.stdout or "packages are not known" in answer.stdout
    plan = check_sweep(load_sweep(site.spec.parent / "again.yaml"))
    assert all(job.run_dir.startswith(f"{site.runs}/elsewhere/again/") for job in plan.jobs)


@pytest.mark.slow
def test_some_points(site: LoginSite) -> None:
    site.run_sweep("part", "left")
    answer = site.call("rerun", "part")
    assert """airflow dags trigger study-rerun --conf '{"points": "left"}'""" in answer.stdout


@pytest.mark.slow
def test_refused(site: LoginSite) -> None:
    site.run_sweep("first")
    answer = site.call("rerun", "frist")
    assert answer.status == 1
    assert "no sweep has a run 'frist' that has stored a plan" in answer.stderr
    answer = site.call("rerun", "first", "--name", "study")
    assert answer.status == 1
    assert "study.yaml exists; choose another --name" in answer.stderr


@pytest.mark.slow
def test_a_name_that_a_file_or_a_sweep_has_is_refused_and_keeps_its_files(site: LoginSite) -> None:
    site.run_sweep("first")
    clusters = site.place / "sbatch" / "clusters"
    mine = clusters / "mine.yaml"
    mine.write_text("# my own\n")
    answer = site.call("rerun", "first", "--name", "mine")
    assert answer.status == 1
    assert f"{mine} exists; choose another --name" in answer.stderr
    assert [mine.read_text(), *clusters.glob("mine.*")] == ["# my own\n", mine]
    for name in ("x" * 300, "a/b", "a b", "..", ""):
        answer = site.call("rerun", "first", "--name", name)
        assert answer.status in (1, 2), name
        assert "Traceback" not in answer.stderr
    (site.spec.parent / "own.yaml").write_text(site.spec.read_text().replace("name: study", "name: taken"))
    answer = site.call("rerun", "first", "--name", "taken")
    assert answer.status == 1, answer.stdout
    assert "own.yaml" in answer.stderr
    assert not (site.spec.parent / "taken.yaml").exists()
    assert not list(clusters.glob("taken*"))


@pytest.mark.slow
@pytest.mark.parametrize("failing", ["mkdir", "open", "write"])
def test_a_full_disk_leaves_own_files_and_no_others(
    site: LoginSite, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    site.run_sweep("first")
    clusters = site.place / "sbatch" / "clusters"
    mine = clusters / "mine.yaml"
    if failing == "mkdir":
        mine.write_text("# my own\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full_in_specs(path: Path, mode: str = "r", *words: object, **options: object) -> object:
        if path.parent == site.spec.parent and "x" in mode:
            if failing == "open":
                full()
            file = opened(path, mode, *words, **options)  # type: ignore[call-overload]
            file.write = full
            return file
        return opened(path, mode, *words, **options)  # type: ignore[call-overload]

    opened = Path.open
    monkeypatch.setattr(
        Path, "mkdir" if failing == "mkdir" else "open", full if failing == "mkdir" else full_in_specs
    )
    answer = site.call("rerun", "first", "--name", "mine")
    monkeypatch.undo()
    assert answer.status == 1
    assert "Traceback" not in answer.stderr
    assert not (site.spec.parent / "mine.yaml").exists()
    assert list(clusters.glob("mine*")) == ([mine] if failing == "mkdir" else [])


@pytest.mark.slow
def test_an_interruption_while_it_compares_leaves_no_files(
    site: LoginSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run_sweep("first")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_megatron.cli.runs.rerun._programs", interrupted)
    assert site.call("rerun", "first").status != 0
    assert not list(site.spec.parent.glob("study-rerun*"))
    assert not list((site.place / "sbatch" / "clusters").glob("study-rerun*"))
