"""Requested tasks, each with its few-shot setting, and the merged results of several runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Sections of lm-evaluation-harness's results whose keys are names of tasks.
_BY_TASK = (
    "results",
    "groups",
    "group_subtasks",
    "configs",
    "versions",
    "n-shot",
    "higher_is_better",
    "n-samples",
)


@dataclass(frozen=True)
class TaskRequest:
    """A task, or group of tasks, of the harness.

    :param name: its name.
    :param num_fewshot: examples before each question; None for the default of the task.
    """

    name: str
    num_fewshot: int | None = None


def parse_requests(text: str, num_fewshot: int | None) -> list[TaskRequest]:
    """Read a list of tasks.

    :param text: ``heldout,arc_easy@25``: the number after ``@`` is the few-shot setting of the task.
    :param num_fewshot: the setting of all other tasks.
    :raises ValueError: if there is no task, a task is repeated with the same setting, or a setting is not a number.
    """
    requests = []
    for word in (word.strip() for word in text.split(",") if word.strip()):
        name, separator, shots = word.partition("@")
        if separator and not shots.isdigit():
            raise ValueError(f"{word}: behind @ stands the number of examples, as in {name}@5")
        requests.append(TaskRequest(name, int(shots) if separator else num_fewshot))
    if not requests:
        raise ValueError("it names no task")
    doubled = next((request for request in requests if requests.count(request) > 1), None)
    if doubled:
        raise ValueError(f"{doubled.name} is named twice with the same few-shot setting")
    return requests


def directory_of(name: str, directories: Sequence[Path]) -> Path | None:
    """Return the directory for relative data paths of a task: the directory of its file, otherwise the first one.

    :param name: name of the task.
    :param directories: folders of task files.
    """
    own = (directory for directory in directories if (directory / f"{name}.yaml").is_file())
    return next(own, directories[0] if directories else None)


def merged_results(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the results of several runs of the harness, in the harness's structure.

    A task of more than one run is named with its number of examples: ``arc_easy@25``.

    :param runs: return values of ``simple_evaluate``.
    """
    merged = dict(runs[0])
    if len(runs) == 1:
        return merged
    everywhere = [name for run in runs for name in run["results"]]
    for section in _BY_TASK:
        merged[section] = {
            _own_name(name, run, everywhere): value
            for run in runs
            for name, value in run.get(section, {}).items()
        }
    return merged


def _own_name(name: str, run: Mapping[str, Any], everywhere: Sequence[str]) -> str:
    return f"{name}@{run['n-shot'].get(name, 0)}" if everywhere.count(name) > 1 else name
