"""A stored plan does not depend on later changes of its sources; a damaged copy is an error."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from example_specs import CHAIN

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.pinned import POINTS_IN_ONE_OBJECT, PinnedSweep, plan_environment_of
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.plan.plan_environment import PlanEnvironment
from airflow_megatron.plan.sweep_plan import check_sweep, plan_sweep
from airflow_megatron.spec.documents import project
from airflow_megatron.spec.model.cluster_profile import cluster_names
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_megatron.spec.model.jobs import Job

ROOT = project.project_root()
PROFILE = """
ssh_conn_id: slurm_site
run_root: /scratch/runs
python: /opt/venv/bin/python
megatron_lm_dir: /opt/Megatron-LM
launcher: torchrun
env: {OMP_NUM_THREADS: 4}
setup: ["ulimit -c 0"]
signatures: [own.yaml]
"""
SIGNATURES = "signatures:\n  - {name: fabric, pattern: fabric down, outcome: retryable, reason: it failed}\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate project: specs, templates, one cluster profile with a file of signatures."""
    shutil.copytree(ROOT / "sbatch", tmp_path / "sbatch")
    with (tmp_path / "sbatch" / "command.sbatch.j2").open("a") as own:
        own.write("# the site's own: without it there is the shipped one\n")
    (tmp_path / "Megatron-LM").symlink_to(ROOT / "Megatron-LM")
    (tmp_path / "sbatch" / "clusters" / "site.yaml").write_text(PROFILE)
    (tmp_path / "sbatch" / "clusters" / "own.yaml").write_text(SIGNATURES)
    (tmp_path / "base.yaml").write_text(CHAIN)
    (tmp_path / "chain.yaml").write_text("name: chain\nextends: base.yaml\ncluster: site\n")
    monkeypatch.setenv(project.HOME_VARIABLE, str(tmp_path))
    monkeypatch.setenv(project.PINS_VARIABLE, str(tmp_path / "pins"))
    return tmp_path


def pinned(home: Path) -> PinnedSweep:
    file = home / "chain.yaml"
    sweep = load_sweep_text(file.read_text(), str(file))
    plan_environment = PlanEnvironment.now(sweep.settings.cluster)
    plan = check_sweep(sweep, plan_environment.cluster)
    return PinnedSweep.stored(sweep, file.read_text(), plan, plan_environment, PinStore())


def scripts(jobs: list[Job]) -> list[str]:
    """Return the scripts that a worker would submit."""
    found = []
    for job in jobs:
        around = plan_environment_of(job)
        found.append(job_script(job, around.cluster, 1, templates=around.templates))
    return found


def in_place(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(home: Path) -> None:
        text = (home / name).read_text()
        assert old in text
        (home / name).write_text(text.replace(old, new))

    return edit


EDITS = {
    "spec": (in_place("chain.yaml", "cluster: site", "cluster: site\nenv: {X: 1}"), "chain.yaml"),
    "broken spec": (in_place("chain.yaml", "name: chain", "nam: chain"), "chain.yaml"),
    "no spec": (lambda home: (home / "chain.yaml").unlink(), "chain.yaml (gone)"),
    "extends": (in_place("base.yaml", "global_batch_size: 16", "global_batch_size: 32"), "base.yaml"),
    "run_root": (in_place("sbatch/clusters/site.yaml", "/scratch/runs", "/scratch/other"), "(run_root)"),
    "connection": (in_place("sbatch/clusters/site.yaml", "slurm_site", "slurm_x"), "(ssh_conn_id)"),
    "launcher": (in_place("sbatch/clusters/site.yaml", "torchrun", "srun"), "(launcher)"),
    "environment": (in_place("sbatch/clusters/site.yaml", "NUM_THREADS: 4", "NUM_THREADS: 5"), "(env)"),
    "setup": (in_place("sbatch/clusters/site.yaml", "ulimit -c 0", "ulimit -c 1"), "(setup)"),
    "no profile": (lambda home: (home / "sbatch/clusters/site.yaml").unlink(), "no cluster profile 'site'"),
    "template": (in_place("sbatch/train.sbatch.j2", "am_run", "am_run_otherwise"), "sbatch/train.sbatch.j2"),
    "its parent": (in_place("sbatch/job.sbatch.j2", "#SBATCH", "#SBATCH --hold"), "sbatch/job.sbatch.j2"),
    "no template": (lambda home: (home / "sbatch/command.sbatch.j2").unlink(), "sbatch/command.sbatch.j2"),
    "signatures": (in_place("sbatch/clusters/own.yaml", "it failed", "it burnt"), "own.yaml"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", EDITS)
def test_editing_a_source_changes_nothing_and_is_reported(what: str, home: Path) -> None:
    plan = pinned(home)
    before = (plan.plan(), scripts(list(plan.plan().jobs)), plan.plan_environment)
    assert plan.changes() == []
    edit, message = EDITS[what]
    edit(home)
    again = PinnedSweep.read(plan.pin)
    assert (again.plan(), scripts(list(again.plan().jobs)), again.plan_environment) == before
    assert again.plan().digest == plan.digest
    assert "reason: it failed" in again.plan_environment.signatures["own.yaml"]
    assert any(message in change for change in again.changes()), again.changes()


def everything(pin: str) -> tuple[object, ...]:
    again = PinnedSweep.read(pin)
    return again.plan(), again.plan_environment, again.outline


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cut", "changed", "empty", "gone"])
def test_a_damaged_copy_is_an_error(what: str, home: Path) -> None:
    plan = pinned(home)
    for path in sorted((home / "pins" / "objects").rglob("*")):
        if not path.is_file():
            continue
        whole = path.read_bytes()
        if what == "gone":
            path.unlink()
        else:
            changed = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
            path.write_bytes({"cut": whole[:-3], "changed": changed, "empty": b""}[what])
        with pytest.raises(PinError, match=r"clear `plan` to plan again"):
            everything(plan.pin)
        path.write_bytes(whole)
    # planning again restores it
    path.write_bytes(b"damaged")
    assert pinned(home).plan() == plan.plan()


def test_keys_that_a_profile_does_not_use_leave_its_plans_alone() -> None:
    now = PlanEnvironment.now("local")
    assert not {"login_budget", "min_poll_interval", "storage"} & set(now.to_json([])["cluster"])
    limited = replace(now, cluster=now.cluster.model_copy(update={"login_budget": 2}))
    assert limited.to_json([])["cluster"]["login_budget"] == 2


@pytest.mark.slow
def test_profiles_come_back_as_they_were(tmp_path: Path) -> None:
    store = PinStore(tmp_path)
    for name in cluster_names():
        now = PlanEnvironment.now(name)
        then = PlanEnvironment.from_json(store.get(store.put(now.to_json([]))), store)
        assert then.cluster == now.cluster
        assert then.changes(now) == []


@pytest.mark.slow
def test_an_argument_table_is_pinned_with_its_profile(home: Path) -> None:
    table = ROOT / "airflow_megatron" / "megatron" / "trainers" / "megatron_core" / "arguments.json"
    own = home / "fork.json"
    shutil.copy(table, own)
    profile = home / "sbatch" / "clusters" / "site.yaml"
    profile.write_text(f"{PROFILE}trainers: {{megatron_core: {{arguments_table: {own}}}}}\n")
    plan = pinned(home)
    own.write_text("{}")
    kept = PinnedSweep.read(plan.pin).plan_environment.cluster.trainer("megatron_core").arguments_table
    assert kept is not None
    assert Path(kept).read_text() == table.read_text()
    assert any("fork.json" in change for change in plan.changes())


@pytest.mark.slow
def test_a_point_is_found_among_many(home: Path) -> None:
    count = 2 * POINTS_IN_ONE_OBJECT + 1
    many = CHAIN.replace("lr: [", f"lr: [{', '.join(str(number) for number in range(1, count))}, ")
    (home / "base.yaml").write_text(many)
    plan = pinned(home)
    assert len(plan.points) > count
    for point in (plan.points[0], plan.points[POINTS_IN_ONE_OBJECT], plan.points[-1]):
        assert plan.jobs_of(point) == plan.plan().jobs_of(point)
        assert {job.point for job in plan.jobs_of(point)} == {"", point}
    with pytest.raises(PinError, match="has no point 'lr1x'; did you mean"):
        plan.jobs_of("lr1x")


@pytest.mark.parametrize(
    "name", ["..", ".", "a/b", "../../x", "manual__2026-11-22T07:20:06+00:00", "x" * 300, ""]
)
def test_ids_of_runs_are_never_paths(name: str, tmp_path: Path) -> None:
    store = PinStore(tmp_path / "pins")
    store.set_newest("sweep", name, "0" * 64)
    assert store.newest("sweep", name) == "0" * 64
    assert store.newest("other", name) is None
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    folders = {tmp_path / "pins" / "runs" / "_sweep", tmp_path / "pins" / "under_way" / "_sweep"}
    assert {path.parent for path in written} == folders
    assert not any(path.stat().st_mode & 0o077 for path in written)
    with pytest.raises(PinError, match="is not a digest"):
        store.get("../" + "a" * 61)


def test_the_form_of_version_0_1_is_read(home: Path) -> None:
    """A run that version 0.1.0 has planned has the spec itself in its XCom."""
    text = CHAIN.replace("name: chain", "name: pinned")
    sweep = load_sweep_text(text, "gone.yaml")
    plan = plan_sweep(sweep, None, sweep.points[1:])
    old = {"file": "gone.yaml", "text": text, "cluster": "local", "points": list(plan.points), "sources": {}}
    read = PinnedSweep.from_json({**old, "digest": plan.digest})
    assert read.plan() == plan
    assert read.plan().points == ("lr0.004",)
    assert read.digest == plan.digest
    assert PinnedSweep.from_json(json.loads(json.dumps(read.to_json()))) == read
