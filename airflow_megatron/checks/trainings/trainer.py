"""Check command lines by the rules of this project's own trainer."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.megatron.commands.commands import (
    SUBSTITUTES,
    comparable_words,
    reads_files,
    runs_pretrain_gpt,
    search_starter,
)
from airflow_megatron.megatron.rules.argument_problem import named_arguments
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.requirements.job_programs import JobProgramError, answers
from airflow_megatron.slurm.submission.job_script import is_shipped_template, template_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from airflow_megatron.spec.model.jobs import Job

_MISSING: Final = " must be given"


def _runs_own_trainer(job: Job) -> bool:
    asked = trainer_called(job.trainer).checked_by == "program"
    return asked and not job.extra_arguments and runs_pretrain_gpt(job.command)


def unanswered(job: Job, error: JobProgramError) -> Finding:
    """Return the finding of a check program that fails.

    :param job: the first one that it was asked about
    """
    return Finding("job-program", job, ("megatron",), f"its arguments cannot be checked: {error}", "")


def trainer_findings(jobs: Sequence[Job], templates: Path) -> Iterator[Finding]:
    """Yield the errors with which the trainer would exit at its start.

    A project without the trainer's folder is not checked; arguments that only a fork has are not checked either. A
    missing argument is a warning if the job's template is not the shipped one, because it may add the argument. Of
    upstream's searches for a learning rate, only the starter's own options are checked.

    :param jobs: with their commands
    :param templates: folder of the cluster's sbatch templates
    """
    is_shipped = functools.cache(lambda name: is_shipped_template(name, templates))
    alike: dict[tuple[tuple[tuple[str, ...], ...], int, str | None], list[Job]] = {}
    for job in jobs:
        starter = search_starter(job.command)
        if job.script or not job.runs_trainer or not (starter or _runs_own_trainer(job)):
            continue
        substitutes = SUBSTITUTES if reads_files(job.command) else SUBSTITUTES[:1]
        lines = tuple(comparable_words(job.command, substitute) for substitute in substitutes)
        alike.setdefault((lines, job.world_size, starter), []).append(job)
    asked = [
        {"argv": argv, "world_size": size, "starter": starter}
        for lines, size, starter in alike
        for argv in lines
    ]
    try:
        answered = iter(answers("check_arguments.py", asked))
    except JobProgramError as error:
        yield unanswered(next(iter(alike.values()))[0], error)
        return
    for (lines, _, _), refused in alike.items():
        first, *others = (each or [] for each in itertools.islice(answered, len(lines)))
        for problem in first:
            if not all(problem in other for other in others):
                continue  # the trainer refuses a value that is not known yet
            names = named_arguments(problem)
            missing = problem.endswith(_MISSING)
            verb = "give" if missing else "change"
            for job in refused:
                yield Finding(
                    f"trainer:{','.join(names)}",
                    job,
                    ("megatron",),
                    f"the trainer refuses it (world size {job.world_size}): {problem}",
                    f"{verb} {' or '.join(names)}" if names else "see pretrain_gpt.py --help",
                    warning=missing and not is_shipped(template_name(job)),
                    names=names,
                )
