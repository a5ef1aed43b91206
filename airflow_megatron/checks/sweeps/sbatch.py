"""Check that jobs do not set sbatch options that the submission itself controls."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.slurm.submission.sbatch_options import (
    NO_OPTION,
    directive_options,
    misspelt_option,
    other_directives,
    read_options,
    refused_options,
    split_directive,
    wrong_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.slurm.submission.sbatch_options import RefusedOption, SbatchOption
    from airflow_megatron.spec.model.jobs import Job


_OF_FIELDS: Final[Mapping[str, str]] = {
    "cpus-per-task": "cpus_per_task",
    "gpus-per-node": "gpus_per_node",
    "nodes": "nodes",
    "partition": "partition",
    "time": "time",
}
"""Options that a field of ``slurm:`` sets. sbatch would use the option instead of the field. The number of
processes, the checks of limits, the estimates and the end before the walltime would then be those of another job."""


_INSTEAD: Final[Mapping[str, str]] = {
    "chdir": "use cd in the script; relative paths refer to the submission's own",
    "output": "the log is output_file",
    "error": "both streams go to output_file",
}


def sbatch_findings(jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield reserved options in ``slurm.options``, in the ``cmd`` of other tools, and in the job's own script."""
    for job in jobs:
        if job.script is None:
            yield from _of_rendered(job)
        else:
            for words, key, where in (
                (job.slurm.options, "cmd", "its command passes sbatch"),
                (directive_options(job.script), "template", "its script holds #SBATCH"),
            ):
                if words:
                    options = list(read_options(words))
                    for refused in refused_options(options, own_script=True):
                        yield _finding(job, refused, (key,), where)
                    yield from _mistakes(job, options, (key,), where)
                    yield from _replaced(job, options, (key,), where)
            if others := other_directives(job.script):
                message = f"its script holds {others[0][:80]}: options of PBS and LSF are not read"
                hint = "write them as #SBATCH lines, or remove them"
                yield Finding("options of PBS and LSF", job, ("template",), message, hint, warning=True)


def _of_rendered(job: Job) -> Iterator[Finding]:
    options = job.slurm.options
    given = list(read_options(word for option in options for word in split_directive(option)))
    keys = ("slurm", "options")
    for text in options:
        if text.lstrip().startswith("#SBATCH"):
            message = f"slurm.options hold {text.strip()[:80]!r}, which sbatch reads as a comment"
            instead = text.strip().removeprefix("#SBATCH").strip()[:80]
            hint = f"write {instead}" if instead else "remove it"
            yield Finding("sbatch comment line", job, keys, message, hint, word=text)
        elif not split_directive(text):
            what = f"{text.strip()[:80]!r}, a comment" if text.strip() else "an empty text"
            message = f"slurm.options hold {what}, which has no effect"
            bare = text.strip().lstrip("#").strip()[:80]
            hint = f"write {bare}, or remove it" if bare.startswith("-") else "remove it"
            yield Finding("sbatch comment", job, keys, message, hint, warning=True, word=text)
    for refused in refused_options(given):
        if refused.name == NO_OPTION and refused.text not in options:
            refused = replace(refused, instead=f"remove {refused.text[:80]}, or quote a value with blanks")
        yield _finding(job, refused, keys, "slurm.options hold")
    for option in given:
        field = next((_OF_FIELDS[name] for name in option.meant if name in _OF_FIELDS), None)
        if field is not None and len(option.meant) == 1 and not wrong_value(option):
            message = f"slurm.options hold {' '.join(option.words)[:80]}, which slurm.{field} sets"
            hint = f"write {field}: … in slurm:"
            yield Finding(
                f"sbatch {option.name}", job, keys, message, hint, warning=True, word=option.words[0]
            )
    yield from _mistakes(job, given, keys, "slurm.options hold")


def _replaced(
    job: Job, options: Sequence[SbatchOption], keys: tuple[str, ...], where: str
) -> Iterator[Finding]:
    """Yield options of a user's script that give way to other values of the submission's own."""
    directory = job.work_dir or job.run_dir
    log = (job.log or "").replace("{attempt}", "1")
    replaced = {"chdir": directory, "output": log, "error": log, "open-mode": "append"}
    for option in options:
        name, value = option.name, option.value or ""
        own = replaced.get(name)
        if (
            own is None
            or posixpath.join(directory, value) == own
            or (name == "open-mode" and value[:1] == "a")
        ):
            continue
        message = f"{where} {' '.join(option.words)[:80]}, which gives way to the submission's own {own}"
        yield Finding(f"sbatch {name}", job, keys, message, _INSTEAD.get(name, "remove it"), warning=True)


def _mistakes(
    job: Job, options: Sequence[SbatchOption], keys: tuple[str, ...], where: str
) -> Iterator[Finding]:
    """Yield options that sbatch refuses, or that are probably mistakes."""
    for option in options:
        if instead := wrong_value(option):
            message = f"{where} {' '.join(option.words)[:80]}, which sbatch refuses"
            yield Finding(f"sbatch {option.name}", job, keys, message, instead, word=option.words[0])
        if "comment" in option.meant:
            message = f"{where} --comment, which gives way to the submission's own"
            yield Finding(
                "sbatch comment", job, keys, message, "remove it", warning=True, word=option.words[0]
            )
        elif near := misspelt_option(option):
            message = f"{where} {option.words[0][:80]}, which is not a standard option of sbatch"
            yield Finding(
                f"sbatch {option.name}", job, keys, message, near, warning=True, word=option.words[0]
            )


def _finding(job: Job, refused: RefusedOption, keys: tuple[str, ...], where: str) -> Finding:
    shown = refused.text if len(refused.text) <= 80 else refused.text[:80] + "…"
    message = f"{where} {shown}, which a job may not set"
    word = refused.text.split()[0] if refused.text.split() else ""
    return Finding(f"sbatch {refused.name}", job, keys, message, refused.instead, word=word)
