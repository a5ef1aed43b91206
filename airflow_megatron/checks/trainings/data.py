"""Check the data of trainings for errors that the training program reports late."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.megatron.arguments.data_blends import (
    BLENDS,
    HINT,
    SHARES_HINT,
    blend_problem,
    share_problem,
)
from airflow_megatron.megatron.trainers.trainer import trainer_called

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_megatron.requirements.training_arguments import TrainingArguments


def data_findings(trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield malformed blends of data sets, unless upstream's own rules report them.

    :param trainings: the arguments of the training jobs by run directory
    """
    for arguments in trainings.values():
        checked_by = trainer_called(arguments.job.trainer).checked_by
        by_rules = checked_by == "upstream_rules"
        for name in [name for name in BLENDS if name in arguments]:
            blend = arguments.value(name)
            # on a command line the blend is one word, which the rules cannot distinguish from a data set of that name
            problem = None if by_rules and not isinstance(blend, str) else blend_problem(blend)
            if problem:
                yield Finding(f"blend:{name}", arguments.job, (name,), f"{name} {problem}", HINT)
            elif checked_by == "program" and (problem := share_problem(blend)):
                yield Finding(f"shares:{name}", arguments.job, (name,), f"{name} {problem}", SHARES_HINT)
