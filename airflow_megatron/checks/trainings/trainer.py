"""Check command lines by the rules of this project's own trainer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.megatron.commands.commands import comparable_words, runs_pretrain_gpt, search_starter
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.requirements.job_programs import answers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.model.jobs import Job

_MISSING: Final = " must be given"
_FLAG: Final = re.compile(r"--([a-z][\w-]*)")


def _runs_own_trainer(job: Job) -> bool:
    asked = trainer_called(job.trainer).checked_by == "program"
    return asked and not job.extra_arguments and runs_pretrain_gpt(job.command)


def trainer_findings(jobs: Sequence[Job]) -> Iterator[Finding]:
    """Yield the errors with which the trainer would end at its start.

    A project without the trainer's folder is not asked, nor is the trainer about arguments that only a fork of it has.
    What is missing is a warning, because a site's template may add it. Of upstream's searches for a learning rate only
    the starter's own options are asked about.

    :param jobs: with their commands
    :raises RuntimeError: if the trainer's program fails
    """
    alike: dict[tuple[tuple[str, ...], int, str | None], list[Job]] = {}
    for job in jobs:
        starter = search_starter(job.command)
        if job.script or not job.runs_trainer or not (starter or _runs_own_trainer(job)):
            continue
        alike.setdefault((comparable_words(job.command), job.world_size, starter), []).append(job)
    asked = [{"argv": argv, "world_size": size, "starter": starter} for argv, size, starter in alike]
    for refused, problem in zip(alike.values(), answers("check_arguments.py", asked), strict=True):
        if problem is None:
            continue
        names = [flag.replace("-", "_") for flag in _FLAG.findall(problem)]
        for job in refused:
            given = next((name for name in names if name in job.params), None)
            yield Finding(
                f"trainer:{','.join(names)}",
                job,
                (given or "megatron",),
                f"the trainer refuses it (world size {job.world_size}): {problem}",
                f"change {' or '.join(dict.fromkeys(names))}" if names else "see pretrain_gpt.py --help",
                warning=problem.endswith(_MISSING),
            )
