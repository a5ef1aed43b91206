"""Run the check programs of ``Megatron-LM/`` to find out what the programs of jobs would reject."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.documents.project import job_programs_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def answers(program: str, questions: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a program's answer to each question; all None if the project's ``Megatron-LM/`` lacks the program.

    :param program: name of a script in ``Megatron-LM/`` that reads and writes JSON lines
    :param questions: plain JSON data
    :raises RuntimeError: if the program fails
    """
    path = job_programs_dir() / program
    if not questions or not path.is_file():
        return [None] * len(questions)
    asked = "".join(json.dumps(question) + "\n" for question in questions)
    return [json.loads(line) for line in _answered(path, asked).splitlines()]


@functools.lru_cache(maxsize=128)  # the start of the program takes most of the time of planning a small sweep
def _answered(path: Path, asked: str) -> str:
    answer = subprocess.run(
        [sys.executable, str(path)], input=asked, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise RuntimeError(f"{path} ended with exit status {answer.returncode}: {last}")
    return answer.stdout
