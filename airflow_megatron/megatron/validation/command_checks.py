"""The check of a command line by the rules of upstream's programs, before a job is submitted.

The rules follow what ``pretrain_gpt.py`` runs before it builds a model: ``parse_args``, ``validate_args``, the
``TransformerConfig`` made from the arguments, and the number of microbatches. Each topic is a module in
``upstream_rules``, with its rules as data. They were compared with upstream's own verdicts on thousands of random
command lines, mainly of core_v0.16.1 and core_v0.19.0; of the releases before 0.16 only the common rules are known.

>>> check(["--num-layers", "3"], world_size=2, release="core_v0.16.1")[0].rule
'batch.micro-missing'
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.megatron.arguments.tables import program_table
from airflow_megatron.megatron.rules.command_line import CommandLineReader, reader
from airflow_megatron.megatron.rules.rule import RuleBook
from airflow_megatron.megatron.rules.settings import Machine, Settings
from airflow_megatron.megatron.validation import first_iteration, job_setup, optional_packages
from airflow_megatron.megatron.validation.upstream_rules import (
    batches,
    checkpointing,
    cuda_graphs,
    data,
    determinism,
    experts,
    inference,
    network,
    parallelism,
    pipeline,
    precision,
    recomputation,
    schedule,
    sharding,
)
from airflow_megatron.megatron.validation.value_ranges import range_problems

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.megatron.rules.argument_problem import ArgumentProblem

#: Upstream's checks before it builds a model, in upstream's order.
BEFORE_THE_MODEL: Final = RuleBook(
    (
        checkpointing.FORMATS,
        network.HETEROGENEOUS,
        parallelism.WORLD,
        inference.REINFORCEMENT,
        data.OLD_FLAGS,
        recomputation.SHORTHANDS,
        cuda_graphs.FLAGS,
        batches.SIZES,
        inference.GENERATED_SAMPLES,
        pipeline.HYBRID_PATTERN,
        pipeline.STAGES,
        sharding.GATHERING,
        sharding.FULLY_SHARDED,
        precision.FORMATS,
        cuda_graphs.GRAPHS,
        schedule.LENGTH,
        network.SIZES,
        schedule.INTERVALS,
        recomputation.RECOMPUTATION,
        parallelism.COMMUNICATION,
        network.FEATURES,
        experts.EXPERTS,
        data.DATA,
        determinism.DETERMINISM,
        sharding.OPTIMIZERS,
        checkpointing.CHECKPOINTS,
        inference.INFERENCE,
        parallelism.CONFIGURATION,
        network.CONFIGURATION,
        precision.CONFIGURATION,
        experts.CONFIGURATION,
        recomputation.CONFIGURATION,
        pipeline.CONFIGURATION,
        cuda_graphs.CONFIGURATION,
        inference.CONFIGURATION,
        batches.MICROBATCH_COUNT,
    )
)
#: Later failures of a job: the tokenizer, the process groups and the model, the first iteration.
FIRST_ITERATION: Final = RuleBook(
    (
        first_iteration.TOKENIZER,
        first_iteration.LOGGING,
        parallelism.GROUPS,
        job_setup.GROUPS,
        first_iteration.DATA,
        job_setup.DATA,
        first_iteration.MODEL,
        job_setup.LAYERS,
        job_setup.OPTIMIZERS,
        determinism.ENGINE,
        optional_packages.PACKAGES,
        first_iteration.FIRST_ITERATION,
    )
)
_NO_GPU_JOB: Final = Machine()


def check(
    argv: Sequence[str],
    world_size: int,
    release: str,
    *,
    machine: Machine = _NO_GPU_JOB,
    first_iteration: bool = False,
    flags: CommandLineReader | None = None,
) -> list[ArgumentProblem]:
    """Check a command line by the rules of a release of Megatron-LM.

    :param argv: the tokens after ``pretrain_gpt.py``.
    :param world_size: number of GPUs (processes) of the job.
    :param release: an upstream tag, for example ``core_v0.16.1``.
    :param machine: properties of the job's nodes; default: without Transformer Engine.
    :param first_iteration: also check for failures between the check of the arguments and the first step.
    :param flags: parser of the flags of a fork; default: that of the release.
    :returns: the problems; empty if upstream accepts the command line.
    :raises ArgumentError: if the release is unknown.
    """
    problems, settings = read_settings(argv, world_size, release, machine=machine, flags=flags)
    if first_iteration and settings is not None and not problems:
        problems = first_iteration_problems(settings)
    return problems


def first_iteration_problems(settings: Settings) -> list[ArgumentProblem]:
    """Return why a training with accepted arguments ends before its first step."""
    return FIRST_ITERATION.broken_by(settings) or range_problems(settings)


def read_settings(
    argv: Sequence[str],
    world_size: int,
    release: str,
    *,
    machine: Machine = _NO_GPU_JOB,
    flags: CommandLineReader | None = None,
    kind: type[Settings] = Settings,
) -> tuple[list[ArgumentProblem], Settings | None]:
    """Read a command line and derive what upstream derives from it (see :func:`check`).

    :param kind: class of the settings
    :returns: the problems and the settings; None if the command line cannot be parsed. With problems, not all settings
        are derived.
    """
    values, problems = (flags or reader(program_table(release).with_packages(machine.packages))).read(argv)
    if problems:
        return problems, None
    settings = kind(release, values, world_size, machine)
    return BEFORE_THE_MODEL.broken_by(settings), settings


def check_lines(
    stream: Iterable[str],
    release: str,
    *,
    machine: Machine = _NO_GPU_JOB,
    environment: Mapping[str, str] | None = None,
    first_iteration: bool = False,
    flags: CommandLineReader | None = None,
) -> Iterator[str]:
    """Check command lines written as JSON lines.

    :param stream: lines ``{"argv": […], "world_size": n, "env": {…}}``, the last one optional; empty lines are
        ignored. A line's ``env`` is merged into ``environment``, and replaces the assumed variables if there is none.
    :param release: an upstream tag.
    :param machine: properties of the jobs' nodes.
    :param environment: variables of all jobs; default: those of ``machine``.
    :param first_iteration: also check for failures between the check of the arguments and the first step.
    :param flags: parser of the flags of a fork; default: that of the release.
    :returns: for each line ``{"ok": bool, "problems": [{"rule", "message", "hint", "source"}, …]}``.
    :raises ValueError: for a line that is not such an object, with the line's number.
    """
    for number, line in enumerate(stream, start=1):
        if line.strip():
            argv, world_size, env = _command(line, number)
            job = machine if env is None else replace(machine, environment={**(environment or {}), **env})
            problems = check(
                argv, world_size, release, machine=job, first_iteration=first_iteration, flags=flags
            )
            yield json.dumps({"ok": not problems, "problems": [problem.to_json() for problem in problems]})


def _command(line: str, number: int) -> tuple[list[str], int, dict[str, str] | None]:
    wanted = f'line {number}: write {{"argv": ["--flag", …], "world_size": n}}'
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{wanted} ({error})") from None
    argv = content.get("argv") if isinstance(content, dict) else None
    if not isinstance(argv, list) or not all(isinstance(token, str) for token in argv):
        raise ValueError(f"{wanted} (argv must be a list of strings)")
    size = content.get("world_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"{wanted} (world_size must be 1 or more)")
    other = next((name for name in content if name.lower().startswith("env") and name != "env"), None)
    if other is not None:  # keys of other programs are left alone, but this one would be missed
        raise ValueError(f"{wanted} ({other!r} is not read; the key of the environment is 'env')")
    env = content.get("env")
    if env is None:
        return argv, size, None
    if not isinstance(env, dict) or any(isinstance(value, (dict, list)) for value in env.values()):
        raise ValueError(f'{wanted} (env must be {{"NAME": "value"}})')
    return argv, size, {name: str(value) for name, value in env.items() if value is not None}
