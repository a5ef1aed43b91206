"""Options of an evaluate stage, as the command line of ``evaluate_hf.py``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BACKENDS: Final = ("hf", "vllm")
_TASK: Final = re.compile(r"([^\s,@]+)(?:@(\d+))?")
_TASK_KEYS: Final = ("task", "num_fewshot")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")


def evaluation_options(tasks: object, params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words that say on what, and how, a model is evaluated.

    :param tasks: as for :func:`task_words`
    :param params: of the job: ``tasks_dir``, ``num_fewshot``, ``limit``, ``eval_backend``,
        ``eval_backend_arguments``, ``eval_batch_size``
    :raises CommandError: if one cannot be used
    """
    directories = params.get("tasks_dir") or []
    for directory in directories if isinstance(directories, list) else [directories]:
        yield from ("--tasks-dir", str(directory))
    yield from ("--tasks", ",".join(task_words(tasks)))
    shots, limit, size = (params.get(name) for name in ("num_fewshot", "limit", "eval_batch_size"))
    if shots is not None:
        yield from ("--num-fewshot", str(_whole("num_fewshot", shots)))
    if limit is not None:
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            raise CommandError("limit", f"limit is {limit!r}; write a number of items, or a share below 1")
        yield from ("--limit", str(limit))
    if size is not None:
        yield from ("--batch-size", size if size == "auto" else str(_whole("eval_batch_size", size)))
    yield from _backend_options(params)


def task_words(tasks: object) -> list[str]:
    """Return tasks as ``evaluate_hf.py`` takes them: ``heldout``, ``arc_easy@25``.

    :param tasks: of a spec: text with commas, or a list of such names and of ``{task: arc_easy, num_fewshot: 25}``
    :raises CommandError: if one cannot be read, or is there twice
    """
    items = tasks.split(",") if isinstance(tasks, str) else tasks
    if not isinstance(items, list):
        raise CommandError("tasks", f"tasks is {tasks!r}; write a list of tasks: [hellaswag, arc_easy@25]")
    words = [_task_word(item) for item in items]
    doubled = next((word for word in words if words.count(word) > 1), None)
    if doubled:
        raise CommandError(
            "tasks", f"tasks names {doubled} twice; give it once, or with another number of examples"
        )
    return words


def _task_word(item: object) -> str:
    if isinstance(item, dict):
        unknown = next((str(key) for key in item if key not in _TASK_KEYS), None)
        if unknown is not None:
            near = did_you_mean(unknown, _TASK_KEYS) or f"known: {', '.join(_TASK_KEYS)}"
            raise CommandError("tasks", f"tasks: unknown key {unknown!r} of a task; {near}")
        shots = item.get("num_fewshot")
        suffix = "" if shots is None else f"@{_whole('tasks', shots)}"
        return _task_word(f"{item.get('task', '')}{suffix}")
    word = str(item).strip()
    if not _TASK.fullmatch(word):
        raise CommandError(
            "tasks", f"tasks: {word!r} is not a task; write its name, or name@5 for five examples"
        )
    return word


def _backend_options(params: Mapping[str, Any]) -> Iterator[str]:
    backend, arguments = params.get("eval_backend"), params.get("eval_backend_arguments")
    if backend is not None:
        if backend not in BACKENDS:
            near = did_you_mean(str(backend), BACKENDS) or f"known: {', '.join(BACKENDS)}"
            raise CommandError("eval_backend", f"there is no eval_backend {backend!r}; {near}")
        yield from ("--backend", str(backend))
    if arguments is not None:
        if not isinstance(arguments, dict) or not all(_NAME.fullmatch(str(name)) for name in arguments):
            raise CommandError(
                "eval_backend_arguments",
                f"eval_backend_arguments is {arguments!r}; write names with values: {{tensor_parallel_size: 2}}",
            )
        for name, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value)
            yield from ("--backend-argument", f"{name}={text}")


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CommandError(name, f"{name}: {value!r} is not a whole number of 0 or more")
    return value
