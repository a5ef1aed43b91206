"""The command line: its output, output streams and exit status."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from command_line import Answer, runner
from example_specs import CHAIN
from typer.testing import CliRunner

from airflow_megatron.cli.local import local_cluster
from airflow_megatron.cli.setup import cluster_commands
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.project import clusters_dir, project_root
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED = project_root() / "sweep_specs" / "decays.yaml"


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., Answer]:
    """Return a function that runs the command line in this process, in a folder with ``chain.yaml``."""
    specs = tmp_path / "specs"
    specs.mkdir()
    (specs / "chain.yaml").write_text(CHAIN)
    monkeypatch.setenv("AIRFLOW_MEGATRON_SWEEP_SPECS", str(specs))
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    monkeypatch.chdir(specs)
    return runner(monkeypatch, capsys)


class TestLint:
    @pytest.mark.slow
    def test_a_shipped_spec(self, call: Callable[..., Answer]) -> None:
        answer = call("lint", str(SHIPPED))
        plan = check_sweep(load_sweep(SHIPPED))
        assert answer == Answer(
            0, f"{SHIPPED}: {len(plan.points)} points, {len(plan.jobs)} jobs, digest {plan.digest}\n", ""
        )

    def test_all_files_are_checked(self, call: Callable[..., Answer]) -> None:
        Path("bad.yaml").write_text(CHAIN.replace("kind: convert", "kind: convrt"))
        Path("worse.yaml").write_text("point: {{ lr }}\n")
        answer = call("lint", "bad.yaml", "chain.yaml", "worse.yaml", "none.yaml")
        assert answer.status == 1
        lines = answer.stdout.splitlines()
        assert lines[0].startswith(
            "bad.yaml:30:5: stages.convert.kind is 'convrt' (did you mean 'convert'? expected one of "
        )
        assert lines[1].startswith("chain.yaml: 2 points, 19 jobs, digest ")
        assert lines[2].startswith("worse.yaml:1:")
        assert lines[3].endswith("none.yaml: no such file (specs: bad, chain, worse)")

    def test_no_specs(self, call: Callable[..., Answer]) -> None:
        answer = call("lint")
        assert answer.status == 2
        assert "Missing argument" in answer.stderr


class TestPlan:
    def test_json(self, call: Callable[..., Answer]) -> None:
        answer = call("plan", "chain.yaml", "--format", "json")
        assert (answer.status, answer.stderr) == (0, "")
        assert json.loads(answer.stdout) == check_sweep(load_sweep("chain.yaml")).to_json()

    def test_table(self, call: Callable[..., Answer]) -> None:
        answer = call("plan", "chain")
        assert (answer.status, answer.stderr) == (0, "")
        plan = check_sweep(load_sweep("chain.yaml"))
        assert answer.stdout.count("cooldown_300k.evaluate") == 2
        assert "pretrain checkpoint 130" in answer.stdout
        assert answer.stdout.rstrip().endswith(f"2 points, 19 jobs, digest {plan.digest}")

    def test_the_same_command_prints_the_same_text(self, call: Callable[..., Answer]) -> None:
        assert call("plan", "chain", "--format", "json") == call("plan", "./chain.yaml", "--format", "json")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["plan", "chian"], "chian.yaml: no such file (did you mean 'chain'?)"),
            (["plan", "./chian.yaml"], "chian.yaml: no such file"),
            (["plan", "chain.txt"], "chain.txt.yaml: no such file (did you mean 'chain'?)"),
            (["plan", "chain.v2"], "chain.v2.yaml: no such file (did you mean 'chain'?)"),
            (
                ["plan", "chain", "--cluster", "lokal"],
                "there is no cluster profile 'lokal' (did you mean 'local'?)",
            ),
            (["status", "chian"], "chian.yaml: no such file (did you mean 'chain'?)"),
            (["render", "chian", "--job", "x"], "chian.yaml: no such file (did you mean 'chain'?)"),
        ],
    )
    def test_missing_files(self, words: list[str], message: str, call: Callable[..., Answer]) -> None:
        answer = call(*words)
        assert (answer.status, answer.stdout) == (1, "")
        assert answer.stderr.strip().endswith(message)
        assert "Traceback" not in answer.stderr

    @pytest.mark.slow
    def test_a_spec_with_a_dot_in_its_name(self, call: Callable[..., Answer]) -> None:
        Path("chain.v2.yaml").write_text(CHAIN.replace("name: chain", "name: chain-2"))
        for word in ("chain.v2", "chain.v2.yaml", "chain.v2.yml"):
            assert "chain.v2.yaml" in call("lint", word).stdout.replace(f"{word}:", "chain.v2.yaml:")
            assert json.loads(call("plan", word, "--format", "json").stdout)["sweep"] == "chain-2"

    def test_a_sweep_whose_file_has_another_name(self, call: Callable[..., Answer]) -> None:
        Path("first_sweep.yaml").write_text(CHAIN.replace("name: chain", "name: first-sweep # tiny"))
        answer = call("plan", "first-sweep", "--format", "json")
        assert json.loads(answer.stdout)["sweep"] == "first-sweep"

    @pytest.mark.parametrize("name", ["draft.txt", "draft.YAML", "draft.yaml.txt"])
    def test_a_file_with_another_ending(self, name: str, call: Callable[..., Answer]) -> None:
        Path(name).write_text(CHAIN)
        for word in ("draft", "draft.yaml"):
            assert f"({name} is there: rename it to draft.yaml)" in call("plan", word).stderr

    def test_files_of_one_name_in_several_folders(self, call: Callable[..., Answer]) -> None:
        for folder in ("alice", "bob"):
            Path(folder).mkdir()
            Path(folder, "same.yaml").write_text(CHAIN.replace("name: chain", f"name: of-{folder}"))
        for word in ("same", "same.yaml"):
            answer = call("plan", word)
            assert answer.status == 1
            assert (
                f"2 specs are called same (write the path of one: {Path.cwd()}/alice/same.yaml"
                in answer.stderr
            )
        assert json.loads(call("plan", "of-alice", "--format", "json").stdout)["sweep"] == "of-alice"
        Path("same.yaml").write_text(CHAIN.replace("name: chain", "name: main"))
        assert json.loads(call("plan", "same", "--format", "json").stdout)["sweep"] == "main"
        Path("same.yml").write_text(CHAIN.replace("name: chain", "name: other-ending"))
        assert json.loads(call("plan", "same.yml", "--format", "json").stdout)["sweep"] == "other-ending"

    def test_a_sweep_of_two_files(self, call: Callable[..., Answer]) -> None:
        for file in ("first.yaml", "second.yaml"):
            Path(file).write_text(CHAIN.replace("name: chain", "name: 'twice'"))
        answer = call("plan", "twice")
        assert "(twice is the sweep of 2 files: write first or second)" in answer.stderr

    def test_a_spec_in_the_folder_of_a_project_that_is_not_configured(
        self, call: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Path("../project/sweep_specs").mkdir(parents=True)
        Path("../project/sweep_specs/our_sweep.yaml").write_text(CHAIN)
        monkeypatch.chdir("../project")
        for word in ("our_sweep", "our-sweep"):
            answer = call("plan", word)
            assert (
                "(sweep_specs/our_sweep.yaml is here: write this path, or set sweep_specs_folder"
                in answer.stderr
            )
        assert call("plan", "sweep_specs/our_sweep.yaml").status == 0

    def test_an_unknown_format(self, call: Callable[..., Answer]) -> None:
        answer = call("plan", "chain", "--format", "xml")
        assert answer.status == 2
        assert "Error: Invalid value for '--format': 'xml' is not one of 'table', " in answer.stderr


class TestRender:
    def test_is_the_script_that_is_submitted(self, call: Callable[..., Answer]) -> None:
        answer = call("render", "chain", "--job", "chain.lr0.001.cooldown_300k", "--attempt", "3")
        assert (answer.status, answer.stderr) == (0, "")
        job = check_sweep(load_sweep("chain.yaml")).job("chain.lr0.001.cooldown_300k")
        assert answer.stdout == job_script(job, load_cluster("local"), 3)
        assert subprocess.run(["bash", "-n"], input=answer.stdout, text=True, check=False).returncode == 0

    def test_an_unknown_job(self, call: Callable[..., Answer]) -> None:
        answer = call("render", "chain", "--job", "chain.lr0.001.pretrian")
        assert (answer.status, answer.stdout) == (1, "")
        assert "no job 'chain.lr0.001.pretrian'; did you mean 'chain.lr0.001.pretrain'" in answer.stderr

    @pytest.mark.parametrize("attempt", ["0", "-1", "x"])
    def test_attempts_count_from_one(self, attempt: str, call: Callable[..., Answer]) -> None:
        assert call("render", "chain", "--job", "x", "--attempt", attempt).status == 2


def test_status_without_a_connection_names_the_fix(call: Callable[..., Answer]) -> None:
    answer = call("status", "chain")
    assert answer.status == 1
    assert "Traceback" not in answer.stderr
    assert "Airflow has no connection 'slurm_local'" in answer.stderr
    assert "Start the local cluster and its Airflow once: make ui, or make quickstart" in answer.stderr


def test_help_names_every_command(call: Callable[..., Answer]) -> None:
    answer = call("--help")
    assert answer.status == 0
    for command in ("lint", "plan", "render", "status", "quickstart", "ui", "cluster"):
        assert command in answer.stdout


@pytest.mark.slow
def test_a_reader_that_stops_early_does_no_harm() -> None:
    """``airflow-megatron plan … | head -1`` in a real shell."""
    code = "from airflow_megatron.cli.app import main; main()"
    result = subprocess.run(
        [
            "bash",
            "-c",
            '"$0" -c "$1" plan "$2" --format json | head -1; echo "${PIPESTATUS[0]}"',
            sys.executable,
            code,
            str(SHIPPED),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[0] == "{"
    assert result.stderr == ""


def test_the_local_cluster_is_made_as_large_as_the_profiles_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command in the first line of each profile for GPUs passes the sizes on."""
    started: list[list[str]] = []

    def run(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(local_cluster.subprocess, "run", run)
    monkeypatch.setattr(cluster_commands, "cluster_description", dict)  # which `up` writes
    monkeypatch.setattr(cluster_commands, "connection_command", str)
    for profile in sorted(clusters_dir().glob("gpu-node-*.yaml")):
        (command,) = re.findall(r"`airflow-megatron (cluster up [^`]*)`", profile.read_text())
        count = profile.stem.removeprefix("gpu-node-")
        assert CliRunner().invoke(cluster_commands.app, command.split()[1:]).exit_code == 0
        assert started[-1][2:7] == ["up", "--nodes", "1", "--gpus-per-node", count]
    assert len(started) == 3
    sizes = ["--cpus-per-node", "16", "--memory-mb", "1000"]
    assert CliRunner().invoke(cluster_commands.app, ["up", *sizes]).exit_code == 0
    assert started[-1][2:7] == ["up", *sizes]
