"""Check the command lines of training jobs by upstream Megatron-LM's own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.checks.trainings.schedules import RULES_OF_SCHEDULES
from airflow_megatron.megatron.arguments.tables import PRETRAIN_GPT, ArgumentError
from airflow_megatron.megatron.commands.commands import (
    SUBSTITUTES,
    comparable_words,
    reads_files,
    upstream_script,
)
from airflow_megatron.megatron.rules.command_line import reader
from airflow_megatron.megatron.trainers.trainer import trainer_called
from airflow_megatron.megatron.validation.other_scripts import SCRIPTS
from airflow_megatron.megatron.validation.repeated_checks import RepeatedChecks
from airflow_megatron.requirements.job_machine import machine_of
from airflow_megatron.requirements.training_arguments import given_names
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem
    from airflow_megatron.requirements.training_arguments import JobArguments
    from airflow_megatron.spec.model.jobs import Job


def megatron_findings(jobs: Sequence[Job], arguments: JobArguments) -> Iterator[Finding]:
    """Yield the command lines that upstream's checks of the release would refuse.

    :param jobs: with their commands
    :param arguments: of these jobs
    """
    cluster = arguments.cluster
    known: dict[tuple[object, ...], list[ArgumentProblem]] = {}
    checks: dict[tuple[object, ...], RepeatedChecks] = {}
    for job in jobs:
        if not job.runs_trainer or trainer_called(job.trainer).checked_by != "upstream_rules" or job.script:
            continue
        script = upstream_script(job.command)
        if script is None:
            continue
        world_size = job.active_processes
        words = comparable_words(job.command)
        try:
            flags = reader(arguments.table(job))
            kind = (script, world_size, job.release, job.entry, flags, *sorted(job.env.items()))
            from_file = reads_files(job.command)
            key = (words, from_file, kind)
            if key not in known:
                if kind not in checks:
                    checks[kind] = RepeatedChecks(
                        world_size,
                        job.release,
                        machine=machine_of(job, cluster),
                        # of other models only some failures after argument parsing are known
                        first_iteration=script == PRETRAIN_GPT,
                        flags=flags,
                        script=SCRIPTS.get(script),
                    )
                known[key] = checks[kind].problems(words)
                if known[key] and from_file:
                    others = checks[kind].problems(comparable_words(job.command, SUBSTITUTES[1]))
                    told = {(problem.rule, problem.message) for problem in others}
                    known[key] = [
                        problem for problem in known[key] if (problem.rule, problem.message) in told
                    ]
        except ArgumentError:
            return  # an unknown release is reported at its key in the spec
        for problem in known[key]:
            if job.trains and problem.rule in RULES_OF_SCHEDULES:
                continue  # reported by schedule_findings
            message = f"{job.release} refuses it on {counted(world_size, 'GPU')}: {problem.message}"
            suspects = (given_names(job, arguments.table(job), group) for group in problem.suspects)
            names = next(filter(None, suspects), ())
            yield Finding(f"megatron:{problem.rule}", job, ("megatron",), message, problem.hint, names=names)
