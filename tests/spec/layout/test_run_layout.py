"""The paths of a run directory, which only one module builds."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import airflow_megatron
from airflow_megatron.spec.layout import run_layout
from airflow_megatron.spec.layout.run_layout import (
    AttemptDir,
    EvaluationPath,
    RecordPath,
    StageDir,
    SweepLayout,
    log_of,
    run_dir_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(airflow_megatron.__file__).parent
OWNER = Path(run_layout.__file__)
SPELLED = re.compile(
    r"(?<![\w{])\.(jobs|arrays|submitting)\b|(?<![\w-])(verdict|exit|job)\.json|\bjob\.sbatch\b|/jobid\b|/job_id\b"
    r"|latest_checkpointed|\b(converted_hf|converted_checkpoints|eval_results|suggested_lr|lr_finder_data)\b"
    r"|/(secrets|gpus|tensorboard|data_cache|wandb|withdrawn|chained|began_at)\b|[}\w]/checkpoints\b|\blogs/[{*]"
)
"""Names of a run directory, as a path or a shell script spells them."""
NOT_OURS = {
    "simulation/run.py": "/checkpoints",  # of the name of a stream of random numbers
    "simulation/site/log_texts.py": "/checkpoints",  # lines that a trainer writes to its log
    "cli/local/local_airflow.py": "logs/{",  # an address of Airflow's
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and text of the strings of a module except docstrings, with ``{}`` for placeholders."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = [*ast.walk(tree)]
    passed = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            passed.update(id(part) for part in node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in passed:
            yield node.lineno, node.value


def spelled(path: Path, text: str) -> list[str]:
    known = NOT_OURS.get(path.relative_to(PACKAGE).as_posix())
    return [found[0] for found in SPELLED.finditer(text) if known is None or known not in found[0]]


@pytest.mark.slow
def test_no_module_spells_a_path_of_a_run_directory() -> None:
    found = [
        f"{path}:{line}: {names}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != OWNER and path.parent.name != "example_dags"  # DAGs of users, with their own commands
        for line, text in texts(path)
        if (names := spelled(path, text))
    ]
    assert not found, "\n".join(found)


def test_no_shell_script_spells_one() -> None:
    """They get the names as variables."""
    found = [
        f"{path}:{number}: {names}"
        for path in sorted(PACKAGE.rglob("*.sh"))
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if (names := spelled(path, re.sub(r"(^|\s)#.*", "", line)))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "{}/.jobs/{}",
        "['run_dir'] ~ '/.jobs/a'",
        "{}/verdict.json",
        "{}/exit.json",
        '"$am_dir/jobid"',
        "{}/checkpoints",
        "{}/{}/.arrays/{}.{}",
        "for log in logs/*.out",
        "{}/logs/{}-{}.out",
        "converted_hf/iter_{}",
        "{}/secrets",
    ],
)
def test_a_spelled_path_would_be_seen(text: str) -> None:
    assert SPELLED.search(text)


def test_the_owner_spells_them() -> None:
    assert [line for line, text in texts(OWNER) if SPELLED.search(text) or text in {".jobs", "verdict.json"}]


class TestLayout:
    """Files that 7332a23 wrote on clusters are still found."""

    def test_of_a_run_directory(self) -> None:
        run = SweepLayout.of("/runs/", "s").point("p")
        stage = run.stage("train")
        attempt = stage.attempt(2)
        assert run.run_dir == "/runs/s/p"
        assert stage.stage == "train"
        assert (stage.path, stage.verdict) == ("/runs/s/p/.jobs/train", "/runs/s/p/.jobs/train/verdict.json")
        assert attempt.path == "/runs/s/p/.jobs/train/2"
        assert attempt.verdict == "/runs/s/p/.jobs/train/2/verdict.json"
        assert attempt.exit == "/runs/s/p/.jobs/train/2/exit.json"
        assert attempt.script == "/runs/s/p/.jobs/train/2/job.sbatch"
        assert attempt.owner == "/runs/s/p/.jobs/train/2/run/job_id"
        assert attempt.secrets == "/runs/s/p/.jobs/train/2/secrets"
        assert run.log_pattern("train") == "/runs/s/p/logs/train-{attempt}.out"
        assert run.tracker == "/runs/s/p/checkpoints/latest_checkpointed_iteration.txt"
        assert run.model_config(20) == "/runs/s/p/converted_hf/iter_20/config.json"
        assert run.converted_mark("{iteration}") == "/runs/s/p/converted_checkpoints/iter_{iteration}.done"
        assert run.evaluation(20) == "/runs/s/p/eval_results/iter_20/results.json"
        assert run.of_run("a").evaluation(1) == "/runs/s/p/runs/a/eval_results/iter_1/results.json"

    def test_of_arrays(self) -> None:
        assert SweepLayout.of("/runs", "s").array("train", "ab12") == "/runs/s/.arrays/train.ab12"


class TestReadingPaths:
    def test_an_attempt(self) -> None:
        assert AttemptDir.of("/r/.jobs/a/12") == StageDir("/r/.jobs/a").attempt(12)
        assert AttemptDir.from_path("/r/.jobs/a/1.withdrawn.99") is None
        with pytest.raises(ValueError, match="not the directory of an attempt"):
            AttemptDir.of("/r/.jobs/a/verdict.json")

    def test_a_record(self) -> None:
        assert RecordPath.from_relative(".jobs/a.b/verdict.json") == RecordPath("a.b", None, "verdict.json")
        assert RecordPath.from_relative(".jobs/a/3/run/job_id") == RecordPath("a", 3, "run/job_id")
        assert RecordPath.from_relative(".jobs/a/x/job.json") is None
        assert RecordPath.from_relative("eval_results/iter_1/results.json") is None

    def test_an_evaluation(self) -> None:
        assert EvaluationPath.from_relative("eval_results/iter_10/results.json") == EvaluationPath("", 10)
        assert EvaluationPath.from_relative("runs/x/eval_results/iter_1/results.json") == EvaluationPath(
            "x", 1
        )
        assert EvaluationPath.from_relative("eval_results/iter_x/results.json") is None
        assert EvaluationPath.from_relative("runs/a.json") is None

    def test_a_log(self) -> None:
        assert log_of("logs/cooldown-1.convert-12.out") == ("cooldown-1.convert", 12)
        assert log_of("logs/other.out") is None

    def test_the_run_of_a_checkpoint_folder(self) -> None:
        assert (run_dir_of("/r/checkpoints"), run_dir_of("/other")) == ("/r", "/other")
