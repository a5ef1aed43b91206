"""Scripts without submission: one on standard output, or all of a sweep in a folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import Answer, runner
from example_specs import CHAIN

from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Answer]:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)


class TestNames:
    @pytest.mark.slow
    def test_the_plan_lists_names_that_render_takes(self, call: Callable[..., Answer]) -> None:
        names = call("plan", "chain", "--format", "names").stdout.splitlines()
        plan = check_sweep(load_sweep("chain.yaml"))
        assert len(names) == len(set(names)) == len(plan.jobs)
        assert [plan.job(name) for name in names] == list(plan.jobs)
        shown = call("plan", "chain").stdout.split()
        assert set(names) <= set(shown)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["lr0.001.cooldown_300k", "chain.lr0.001.cooldown_300k"])
    def test_a_job_by_point_and_stage_or_by_its_whole_name(
        self, name: str, call: Callable[..., Answer]
    ) -> None:
        job = check_sweep(load_sweep("chain.yaml")).job("chain.lr0.001.cooldown_300k")
        script = job_script(job, load_cluster("local"), 1)
        assert call("render", "chain", name) == Answer(0, script, "")
        assert call("render", "chain", "--job", name) == Answer(0, script, "")

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("words", "status", "message"),
        [
            (["lr0.001.pretrian"], 1, "no job 'lr0.001.pretrian'; did you mean 'lr0.001.pretrain'"),
            (
                ["pretrain"],
                1,
                "'pretrain' is the stage of 2 jobs; name one of them: lr0.001.pretrain, lr0.004",
            ),
            (["nothing-like-it"], 1, "airflow-megatron plan SPEC --format names lists them"),
            ([], 2, "name one job: airflow-megatron render SPEC POINT.STAGE"),
            (["a", "--job", "b"], 2, "name one job"),
        ],
    )
    def test_unknown_names_are_refused(
        self, words: list[str], status: int, message: str, call: Callable[..., Answer]
    ) -> None:
        answer = call("render", "chain", *words)
        assert (answer.status, answer.stdout) == (status, "")
        assert message in " ".join(answer.stderr.split())


@pytest.mark.parametrize("command", ["render", "build"])
def test_the_sweep_of_two_files_has_no_scripts(command: str, call: Callable[..., Answer]) -> None:
    Path("copy.yaml").write_text(CHAIN)
    answer = call(command, "copy", "prepare_data" if command == "render" else "scripts")
    assert (answer.status, answer.stdout) == (1, "")
    assert "copy.yaml:1:1: chain.yaml defines a sweep 'chain' too" in answer.stderr
    assert not Path("scripts").exists()


class TestBuild:
    @pytest.mark.slow
    def test_every_script_is_the_one_that_is_submitted(self, call: Callable[..., Answer]) -> None:
        answer = call("build", "chain", "scripts")
        assert (answer.status, answer.stdout) == (0, "")
        plan = check_sweep(load_sweep("chain.yaml"))
        assert f"wrote {len(plan.jobs)} scripts" in answer.stderr
        profile = load_cluster("local")
        built = {file.name: file.read_text() for file in Path("scripts").glob("*.sbatch")}
        assert built == {f"{job.name}.sbatch": job_script(job, profile, 1) for job in plan.jobs}
        assert json.loads(Path("scripts/plan.json").read_text()) == plan.to_json()
        checked = subprocess.run(["bash", "-n", *map(str, Path("scripts").glob("*.sbatch"))], check=False)
        assert checked.returncode == 0
        assert sorted(path.name for path in Path().iterdir()) == ["chain.yaml", "scripts"]

    @pytest.mark.slow
    def test_some_points_of_a_later_attempt(self, call: Callable[..., Answer]) -> None:
        assert call("build", "chain", "deep/er", "--select", "lr0.001", "--attempt", "2").status == 0
        scripts = list(Path("deep/er").glob("*.sbatch"))
        assert len(scripts) == 10
        assert all(".a2." in script.read_text() for script in scripts)

    @pytest.mark.parametrize("kind", ["full", "file", "link"])
    def test_existing_files_are_kept(self, kind: str, call: Callable[..., Answer]) -> None:
        place = Path("scripts")
        if kind == "full":
            place.mkdir()
            (place / "mine").write_text("keep")
        elif kind == "file":
            place.write_text("keep")
        else:
            Path("elsewhere").mkdir()
            place.symlink_to("elsewhere")
        answer = call("build", "chain", "scripts")
        assert answer.status == 2
        assert ("is not empty" if kind == "full" else "is not a folder") in answer.stderr
        assert [file.read_text() for file in Path().rglob("mine")] == (["keep"] if kind == "full" else [])

    def test_a_wrong_spec_leaves_no_folder(self, call: Callable[..., Answer]) -> None:
        Path("bad.yaml").write_text(CHAIN.replace("kind: convert", "kind: convrt"))
        assert call("build", "bad.yaml", "scripts").status == 1
        assert sorted(path.name for path in Path().iterdir()) == ["bad.yaml", "chain.yaml"]

    def test_a_folder_that_cannot_be_made(self, call: Callable[..., Answer]) -> None:
        answer = call("build", "chain", "/proc/nowhere")
        assert answer.status == 1
        assert answer.stderr.startswith("/proc/nowhere cannot be written: ")
