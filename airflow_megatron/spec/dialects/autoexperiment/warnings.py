"""Warnings about jobs that AutoExperiment accepts silently and that are probably unintended.

Each warning is one of the file, not one of each job: it says how many jobs it is about.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from airflow_megatron.spec.dialects.autoexperiment.commands import (
    SubmitCommand,
    options_left_out,
    submit_command,
)
from airflow_megatron.spec.dialects.autoexperiment.expressions import is_expression
from airflow_megatron.spec.dialects.autoexperiment.grammar import empty_lists
from airflow_megatron.spec.dialects.autoexperiment.resolution import names_read
from airflow_megatron.spec.dialects.autoexperiment.unread import near_key
from airflow_megatron.spec.documents.yaml_document import value_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_megatron.spec.dialects.autoexperiment.expansion import Expansion
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

_LONGEST_TEXT = 4096
_ZERO_WORD = re.compile(r"\s0(?:\s|\Z)")
_EXPRESSION = re.compile(r"\s*expr\s*\(|.*\bexpr\(", re.IGNORECASE | re.DOTALL)


class _Checked(NamedTuple):
    """A job, with the texts that several checks read.

    :param start: its start_condition_cmd
    :param ended: its termination_cmd
    :param end_line: its termination_str
    """

    params: Mapping[str, Any]
    start: str
    ended: str
    end_line: str


@dataclass
class _Finding:
    """One kind of warning.

    :param count: at how many jobs
    :param detail: of the first, or the worst, of them
    """

    count: int = 0
    detail: Any = None
    worst: float = field(default=float("-inf"))

    def add(self, detail: Any, weight: float = 0) -> None:
        self.count += 1
        if weight > self.worst:
            self.worst, self.detail = weight, detail


def document_warnings(document: YamlDocument, expansion: Expansion, *, builtin: bool) -> list[Problem]:
    """Return warnings about what is probably unintended in a document and its jobs.

    :param builtin: whether this project's own scripts run the jobs, so that nothing of ``cmd`` is used
    """
    return [
        *_of_document(document),
        *_of_texts(document, expansion),
        *_of_jobs(document, expansion, {} if builtin else _COMMAND_CHECKS),
    ]


def _of_document(document: YamlDocument) -> Iterator[Problem]:
    data = document.data
    for path in empty_lists(data):
        yield document.problem(
            path, f"{_dotted(path)} is empty, so what holds it makes no job", "give it a value or drop it"
        )
    for path in _nameless_items(data, ()):
        yield document.problem(
            path,
            f"{path[-1]!r} holds no key, so {path[-3]} gets no value here and its name is lost",
            f"write {path[-1]}: {{NAME: {path[-1]}}}",
        )
    for path in _empty_mappings(data, ()):
        yield document.problem(
            path, f"{_dotted(path)} holds no key, so it gives no value", "give it a value or drop it"
        )
    dead = document.last_place("job_id_regexp")
    if dead:
        yield document.problem(dead, "job_id_regexp is not used by AutoExperiment any more", "drop it")
    yield from _never_used(document)
    yield from _expressions_in_texts(document)


def _nameless_items(node: Any, path: KeyPath) -> Iterator[KeyPath]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        if value == {} and isinstance(value, dict) and len(path) >= 2 and isinstance(path[-1], int):
            yield (*path, key)
        yield from _nameless_items(value, (*path, key))


def _empty_mappings(node: Any, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the places of mappings without keys that are no items of a list."""
    if isinstance(node, dict):
        for key, value in node.items():
            if value == {} and isinstance(value, dict) and not (path and isinstance(path[-1], int)):
                yield (*path, key)
            yield from _empty_mappings(value, (*path, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _empty_mappings(value, (*path, index))


def _expressions_in_texts(document: YamlDocument) -> Iterator[Problem]:
    """Report expressions that are no whole value, which stay text."""
    for path in document.positions:
        value = value_at(document.data, path)
        if isinstance(value, str) and not is_expression(value) and _EXPRESSION.match(value[:_LONGEST_TEXT]):
            yield document.problem(
                path,
                f"{_dotted(path)}: {value[:80]!r} stays text: an expression is the whole value, from expr( to )",
                "give it a key of its own, and read that",
            )


def _never_used(document: YamlDocument) -> Iterator[Problem]:
    """Report values of named items that a later key of the document always replaces."""
    data = document.data
    if not isinstance(data, dict):
        return
    later: dict[Any, Any] = {}
    for key in reversed(data):
        for path in _leaves(data[key], (key,)):
            if path[-1] in later and len(path) > 2:
                place = document.positions.get((path[-1],), (0, 0))[0]
                yield document.problem(
                    path,
                    f"{_dotted(path)} is never used: {path[-1]} in line {place} comes later and wins",
                    f"move {path[-1]} before {key}",
                )
        later[key] = True


def _leaves(node: Any, path: KeyPath) -> Iterator[KeyPath]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(node, list) and any(isinstance(item, dict) for item in node):
        for index, item in enumerate(node):
            yield from _leaves(item, (*path, index))
    else:
        yield path


def _of_texts(document: YamlDocument, expansion: Expansion) -> Iterator[Problem]:
    for key, (count, reason) in expansion.unresolved.items():
        yield document.problem(
            document.last_place(key),
            f"{key} stays as it is written {_at(count, expansion)}: {reason}",
            _instead(document, key, expansion),
        )


def _instead(document: YamlDocument, key: str, expansion: Expansion) -> str:
    """Return a hint for a text that stays unresolved."""
    params = expansion.jobs[0].params
    text = str(value_at(document.data, document.last_place(key)) or params.get(key, ""))
    missing = next((name for name in names_read(text) if name not in params), "")
    if near := near_key(missing, params, 0.75) if missing else "":
        return near
    if is_expression(text) and not missing:
        return "write it with numbers, {KEY} and + - * / // % **"
    if text and not missing:
        return "refer to a key with a value"
    return "give the missing key a value; braces meant for the shell are no trouble"


def _of_jobs(document: YamlDocument, expansion: Expansion, more: Mapping[str, _Check]) -> Iterator[Problem]:
    every = {**_CHECKS, **more}
    found = {name: _Finding() for name in every}
    checks = [(check, found[name]) for name, check in every.items()]
    for job in expansion.jobs:
        read = job.params.get
        start, ended, end_line = read("start_condition_cmd"), read("termination_cmd"), read("termination_str")
        checked = _Checked(job.params, str(start or ""), str(ended or ""), str(end_line or ""))
        for check, finding in checks:
            check(checked, finding)
    for name, finding in found.items():
        if finding.count:
            key, message, hint = _MESSAGES[name]
            where = document.last_place(key) or document.last_place(key.lower())
            detail = finding.detail
            yield document.problem(
                where, f"{message.format(detail=detail)} {_at(finding.count, expansion)}", hint
            )


def _at(count: int, expansion: Expansion) -> str:
    jobs = len(expansion.jobs)
    return "at every job" if count == jobs else f"at {count:,} of {jobs:,} jobs"


def _value(params: Mapping[str, Any], key: str) -> Any:
    return params[key] if key in params else params.get(key.lower())


def _number(params: Mapping[str, Any], key: str) -> float | None:
    try:
        return float(_value(params, key))
    except (TypeError, ValueError, OverflowError):
        return None


def _from_iteration_0(job: _Checked, finding: _Finding) -> None:
    if _ZERO_WORD.search(job.start) and _number(job.params, "ITER") == 0:
        finding.add(job.params["name"])


def _suffix_glob(job: _Checked, finding: _Finding) -> None:
    if "cooldown_helper.sh" in job.start:
        finding.add(job.params["name"])


def _zero_rate_tail(job: _Checked, finding: _Finding) -> None:
    params = job.params
    if str(_value(params, "LR_DECAY_STYLE")).upper() != "WSD":
        return
    end, decayed = _number(params, "TRAIN_ITERS"), _number(params, "LR_DECAY_ITERS")
    if end is not None and decayed is not None and decayed < end:
        finding.add(f"{end - decayed:.0f} of {end:.0f}", end - decayed)


def _crash_counts_as_end(job: _Checked, finding: _Finding) -> None:
    if "KeyError" in job.ended or "KeyError" in job.end_line:
        finding.add(job.params["name"])


def _ends_before_last_save(job: _Checked, finding: _Finding) -> None:
    if not (job.start and "after training is done" in job.ended and "convert" in job.ended):
        return
    iterations, interval = _number(job.params, "TRAIN_ITERS"), _number(job.params, "SAVE_INTERVAL")
    if iterations and interval and iterations % interval:
        finding.add(job.params["name"])


def _no_end(job: _Checked, finding: _Finding) -> None:
    if not (job.ended or job.end_line):
        finding.add(job.params["name"])


def _not_sbatch(job: _Checked, finding: _Finding) -> None:
    if not _command(job).is_plain:
        finding.add(None if finding.count else _left_out(job))  # the first one is shown


def _left_out(job: _Checked) -> tuple[str, str]:
    """Return a command, and which of its options sbatch does not get."""
    cmd = str(job.params["cmd"])
    options = options_left_out(cmd, str(job.params["sbatch_script"]))
    return cmd, f" without {shlex.join(options)}" if options else ""


def _other_script(job: _Checked, finding: _Finding) -> None:
    if not _command(job).names_script:
        finding.add(job.params["cmd"])


def _command(job: _Checked) -> SubmitCommand:
    try:
        return submit_command(str(job.params["cmd"]), str(job.params["sbatch_script"]))
    except ValueError:  # an error, where the job is made
        return SubmitCommand((), is_plain=True)


_Check: TypeAlias = "Callable[[_Checked, _Finding], None]"
_CHECKS: Mapping[str, _Check] = {
    "iteration 0": _from_iteration_0,
    "suffix": _suffix_glob,
    "tail": _zero_rate_tail,
    "crash": _crash_counts_as_end,
    "last save": _ends_before_last_save,
    "no end": _no_end,
}
_COMMAND_CHECKS: Mapping[str, _Check] = {"not sbatch": _not_sbatch, "other script": _other_script}
# key whose line is shown, message, hint
_MESSAGES: Mapping[str, tuple[str, str, str]] = {
    "iteration 0": (
        "ITER",
        "a branch starts from checkpoint 0, which does not exist (first: {detail}),",
        "choose a smaller SAVE_INTERVAL or leave these budgets out",
    ),
    "suffix": (
        "start_condition_cmd",
        (
            "cooldown_helper.sh takes any iteration that ends in ITER (12000 for 2000), and sets a branch that is "
            "started again back to ITER,"
        ),
        "start: {checkpoint: …} of a native spec waits for exactly one iteration",
    ),
    "tail": (
        "LR_DECAY_ITERS",
        "with WSD the last iterations run at learning rate 0 (up to {detail}): LR_DECAY_ITERS is less than TRAIN_ITERS",
        "set LR_DECAY_ITERS to TRAIN_ITERS",
    ),
    "crash": (
        "termination_cmd",
        "a KeyError in the log counts as a finished job",
        "leave KeyError out of the pattern",
    ),
    "last save": (
        "termination_cmd",
        (
            "the job may count as finished before the last checkpoint is there: Megatron prints "
            "'after training is done' before it saves,"
        ),
        "make SAVE_INTERVAL divide TRAIN_ITERS, or wait for the checkpoint",
    ),
    "no end": (
        "termination_str",
        "neither termination_cmd nor termination_str, so exit code 0 is the end,",
        "write termination_str: a line that the finished job prints",
    ),
    "not sbatch": (
        "cmd",
        (
            "cmd {detail[0]!r} is not an sbatch command alone; the script is given to sbatch{detail[1]}, and nothing "
            "else of it is done,"
        ),
        'cmd: "sbatch OPTIONS {sbatch_script}"',
    ),
    "other script": (
        "cmd",
        "cmd {detail!r} does not name the job's sbatch_script; the script of its template is submitted",
        'cmd: "sbatch OPTIONS {sbatch_script}"',
    ),
}


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path if not isinstance(part, int))
