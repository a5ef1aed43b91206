"""Options of an evaluate stage, as the command line of ``evaluate_hf.py``."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.command_error import CommandError
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.expressions.file_values import FILE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BACKENDS: Final = ("hf", "vllm")
_TASK: Final = re.compile(r"([^\s,@]+)(?:@(\d+))?")
_BATCH_SIZE: Final = re.compile(r"0*[1-9][0-9]*|auto(:(?=[0-9.]*[1-9])[0-9]+(\.[0-9]+)?)?", re.ASCII)
_TASK_KEYS: Final = ("task", "num_fewshot")
GIVEN: Final = {
    **dict.fromkeys(("pretrained", "model"), "name another model with start: {from: DIRECTORY}"),
    "batch_size": "write eval_batch_size: N",
    "device": "it runs on the job's GPUs; without one on the CPU",
    "trust_remote_code": "code of the model is run when its configuration names some",
}
"""Arguments of the harness's class that ``evaluate_hf.py`` passes → what to write instead."""
_DTYPE: Final = re.compile(r"auto|half|double|float|bfloat16|float(16|32|64|8_\w+)|", re.ASCII)
"""Floating-point types of torch, by which the class ``hf`` finds them; empty text is the model's own."""
_NAME: Final = re.compile(r"[A-Za-z_]\w*")


def evaluation_options(tasks: object, params: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words for the tasks and the settings of an evaluation.

    :param tasks: as for :func:`task_words`
    :param params: params of the job: ``tasks_dir``, ``num_fewshot``, ``limit``, ``eval_backend``,
        ``eval_backend_arguments``, ``eval_batch_size``
    :raises CommandError: if one is invalid
    """
    for directory in _directories(params.get("tasks_dir") or []):
        yield from ("--tasks-dir", directory)
    words = task_words(tasks)
    shots, limit, size = (params.get(name) for name in ("num_fewshot", "limit", "eval_batch_size"))
    if shots is not None:
        shots = _whole("num_fewshot", shots)
        _check_examples(words, shots)
    yield from ("--tasks", ",".join(words))
    if shots is not None:
        yield from ("--num-fewshot", str(shots))
    if limit is not None:
        if not _is_limit(limit):
            raise CommandError("limit", f"limit is {limit!r}; write a number of items, or a share below 1")
        yield from ("--limit", str(limit))
    if size is not None:
        yield from ("--batch-size", _batch_size(size))
    yield from _backend_options(params)


def _directories(given: object) -> Iterator[str]:
    for directory in given if isinstance(given, list) else [given]:
        if not isinstance(directory, str) or not directory:
            raise CommandError(
                "tasks_dir",
                f"tasks_dir: {directory!r} is not a directory; write one directory, or a list of directories",
            )
        yield directory


def _batch_size(size: object) -> str:
    """Return a batch size as lm-evaluation-harness takes it: a number, or ``auto:4``, found anew four times."""
    if isinstance(size, bool) or not _BATCH_SIZE.fullmatch(str(size)):
        raise CommandError(
            "eval_batch_size",
            f"eval_batch_size: {size!r} is not a whole number of 1 or more, auto, or auto:N with N above 0",
        )
    return str(size)


def _is_limit(limit: object) -> bool:
    """Return whether lm-evaluation-harness takes a limit: a share, or whole items; 1.0 could mean either."""
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not 0 < limit < math.inf:
        return False
    return limit < 1 or isinstance(limit, int) or (limit > 1 and limit.is_integer())


def _check_examples(words: Sequence[str], shots: int) -> None:
    """Refuse a task that is there twice with the same number of examples, given in one place by ``num_fewshot``."""
    seen: dict[tuple[str, int], str] = {}
    for word in words:
        name, _, own = word.partition("@")
        first = seen.setdefault((name, int(own or shots)), word)
        if first is not word:
            raise CommandError(
                "tasks",
                f"tasks names {first} and {word}, which are the same with num_fewshot {shots}; give it once, or with"
                " another number of examples",
            )


def task_words(tasks: object) -> list[str]:
    """Return tasks in the notation of ``evaluate_hf.py``: ``heldout``, ``arc_easy@25``.

    :param tasks: tasks of a spec: text with commas, or a list of such names and of ``{task: arc_easy, num_fewshot:
        25}``
    :raises CommandError: if one is invalid, or occurs twice
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
            if name in GIVEN:
                raise CommandError(
                    "eval_backend_arguments",
                    f"eval_backend_arguments: {name} is given by the stage; {GIVEN[name]}",
                )
            if backend != "vllm" and FILE_PREFIX not in str(value):
                _check_argument(str(name), value)
            text = value if isinstance(value, str) else json.dumps(value)
            yield from ("--backend-argument", f"{name}={text}")


def _check_argument(name: str, value: object) -> None:
    """Refuse values with which lm-evaluation-harness's class for Transformers ends with a traceback."""
    if name == "dtype" and value is not None and not (isinstance(value, str) and _DTYPE.fullmatch(value)):
        wanted = "a floating-point type of torch, such as bfloat16, or auto"
    elif name == "max_length" and value is not None and not _is_length(value):
        wanted = "a whole number of tokens"
    else:
        return
    raise CommandError("eval_backend_arguments", f"eval_backend_arguments: {name} {value!r} is not {wanted}")


def _is_length(value: object) -> bool:
    text = str(value)
    return not isinstance(value, bool) and text.isascii() and text.isdigit()


def _whole(name: str, value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise CommandError(name, f"{name}: {value!r} is not a whole number of {least} or more")
    return value
