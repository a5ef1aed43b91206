"""Work on the checkpoints of every directory that a pattern matches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "Megatron-LM" / "each_checkpoint.py"


def save(directory: Path, *iterations: int) -> None:
    for iteration in iterations:
        (directory / f"iter_{iteration:07d}").mkdir(parents=True)
    directory.mkdir(parents=True, exist_ok=True)
    if iterations:
        (directory / "latest_checkpointed_iteration.txt").write_text(str(max(iterations)))


def work(place: Path, pattern: str, *options: str, shell: str = "true") -> tuple[int, str]:
    """Process the directories that match below *place*; the command writes the directory's path to its marker."""
    done = f"{place}/out/{{run}}/iter_{{iteration}}.done"
    text = f'{shell} && mkdir -p "$(dirname "$2")" && printf %s "$1" >"$2"'
    result = subprocess.run(
        [
            *(sys.executable, str(SCRIPT), "--runs", f"{place}/{pattern}", "--list", f"{place}/list.json"),
            *("--source", "{directory}", "--done", done, *options),
            *("--", "sh", "-c", text, "sh", "{directory}", done),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    return result.returncode, result.stdout


def made(place: Path) -> dict[str, str]:
    """Return the results: path below ``out`` → the directory that it was made from."""
    return {
        str(path.relative_to(place / "out")): path.read_text() for path in (place / "out").rglob("*.done")
    }


@pytest.mark.slow
def test_each_checkpoint_of_each_run_has_a_place_of_its_own(tmp_path: Path) -> None:
    save(tmp_path / "runs/lr1/checkpoints", 10, 20)
    save(tmp_path / "runs/lr2/checkpoints", 10)
    save(tmp_path / "runs/empty/checkpoints")
    save(tmp_path / "runs/.hidden/checkpoints", 10)
    code, message = work(tmp_path, "runs/*/checkpoints")
    assert code == 0, message
    assert made(tmp_path) == {
        "lr1/iter_10.done": f"{tmp_path}/runs/lr1/checkpoints",
        "lr1/iter_20.done": f"{tmp_path}/runs/lr1/checkpoints",
        "lr2/iter_10.done": f"{tmp_path}/runs/lr2/checkpoints",
    }
    listed = json.loads((tmp_path / "list.json").read_text())
    assert listed["lr1"] == {"directory": f"{tmp_path}/runs/lr1/checkpoints", "iterations": [10, 20]}
    assert "empty/checkpoints has no checkpoint that is asked for" in message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("nowhere/*/checkpoints", "no directory matches"),
        ("runs/*/latest_checkpointed_iteration.txt", "no directory matches"),
        ("runs/e*/checkpoints", "has a complete checkpoint"),
    ],
)
def test_a_pattern_without_work_is_one_error(tmp_path: Path, pattern: str, expected: str) -> None:
    save(tmp_path / "runs/empty/checkpoints")
    (tmp_path / "list.json").write_text("{}")  # of an earlier attempt
    code, message = work(tmp_path, pattern)
    assert code == 1
    errors = [line for line in message.splitlines() if expected in line]
    assert errors == [message.splitlines()[-1]]
    assert pattern in errors[0]
    assert not (tmp_path / "list.json").exists()


HOSTILE = ["$(touch pwned)", "; touch pwned", "-rf", "a b", "'\"`", "*", "[x]", "%s\\n", "ü", "x=y"]


@pytest.mark.slow
def test_names_of_runs_are_nothing_but_names(tmp_path: Path) -> None:
    for name in HOSTILE:
        save(tmp_path / "runs" / name, 10)
    code, message = work(tmp_path, "runs/*")
    assert code == 0, message
    assert made(tmp_path) == {f"{name}/iter_10.done": f"{tmp_path}/runs/{name}" for name in HOSTILE}
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [b"a\nb", b"{iteration}", b"{directory}", b"a\x1b[2J", b"\xff\xfe", b"x" * 250]
)
def test_a_name_that_cannot_be_used_is_reported_and_the_others_are_worked_on(
    tmp_path: Path, name: bytes
) -> None:
    save(tmp_path / "runs/good", 10)
    hostile = os.fsdecode(os.fsencode(tmp_path / "runs") + b"/" + name)
    save(Path(hostile), 10)
    code, message = work(tmp_path, "runs/*")
    assert code == 1
    assert made(tmp_path) == {"good/iter_10.done": f"{tmp_path}/runs/good"}
    assert "in its name" in message or "named with more than" in message
    assert "\x1b" not in message


@pytest.mark.slow
def test_two_runs_with_one_name_are_an_error(tmp_path: Path) -> None:
    save(tmp_path / "a_b/c", 10)
    save(tmp_path / "a/b_c", 10)
    code, message = work(tmp_path, "*/*")
    assert code == 1
    assert "would both be named 'a_b_c'" in message


@pytest.mark.slow
def test_one_iteration_of_each_run(tmp_path: Path) -> None:
    save(tmp_path / "runs/a", 10, 20)
    save(tmp_path / "runs/b", 20)
    assert work(tmp_path, "runs/*", "--iteration", "20")[0] == 0
    assert set(made(tmp_path)) == {"a/iter_20.done", "b/iter_20.done"}
    code, message = work(tmp_path, "runs/*", "--iteration", "10")
    assert code == 1
    assert f"{tmp_path}/runs/b has no complete checkpoint of iteration 10" in message
    assert "a/iter_10.done" in made(tmp_path)


@pytest.mark.slow
def test_a_command_that_fails_leaves_the_others_their_turn(tmp_path: Path) -> None:
    save(tmp_path / "runs/a", 10)
    save(tmp_path / "runs/b", 10)
    code, message = work(tmp_path, "runs/*", shell='[ "$(basename "$1")" != a ]')
    assert code == 1
    assert f"failed for iterations 10 of {tmp_path}/runs/a" in message
    assert set(made(tmp_path)) == {"b/iter_10.done"}
