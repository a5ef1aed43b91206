"""Run the check programs of ``Megatron-LM/`` to find out what the programs of jobs would reject."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.documents.project import job_programs_dir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_START_S: Final = 60.0
_QUESTION_S: Final = 1.0


class JobProgramError(AirflowMegatronError, RuntimeError):
    """A check program that fails or does not end."""


def answers(program: str, questions: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a program's answer to each question; all None if the project's ``Megatron-LM/`` lacks the program.

    :param program: name of a script in ``Megatron-LM/`` that reads and writes JSON lines
    :param questions: plain JSON data
    :raises JobProgramError: if the program fails or does not end
    """
    path = job_programs_dir() / program
    if not questions or not path.is_file():
        return [None] * len(questions)
    asked = "".join(json.dumps(question) + "\n" for question in questions)
    return [json.loads(line) for line in _answered(path, asked, len(questions)).splitlines()]


@functools.lru_cache(maxsize=128)  # the start of the program takes most of the time of planning a small sweep
def _answered(path: Path, asked: str, questions: int) -> str:
    limit = _START_S + _QUESTION_S * questions
    try:
        answer = subprocess.run(
            [sys.executable, str(path)],
            input=asked,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=limit,
        )
    except subprocess.TimeoutExpired as error:
        raise JobProgramError(f"{path} did not end within {limit:.0f} s") from error
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise JobProgramError(f"{path} ended with exit status {answer.returncode}: {last}")
    return answer.stdout
