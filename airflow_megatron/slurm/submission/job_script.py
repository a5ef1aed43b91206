"""The sbatch script of an attempt, rendered from the templates in ``sbatch/``."""

from __future__ import annotations

import functools
import hashlib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.meta
import msgspec

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.quoting import MAX_JOB_NAME_LENGTH, quote, quote_path
from airflow_megatron.slurm.remote.secret_delivery import delivered_file
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.submission.attempt_chain import chain_prologue
from airflow_megatron.slurm.submission.gpu_samples import sampling_functions
from airflow_megatron.slurm.submission.job_guard import job_epilogue, job_prologue
from airflow_megatron.slurm.submission.package_templates import OtherPackagesTemplates
from airflow_megatron.slurm.submission.provenance import Origins, recording_lines
from airflow_megatron.slurm.submission.queue_ahead import ahead_guard, ahead_identity
from airflow_megatron.slurm.submission.sbatch_options import (
    DIRECTIVE,
    head_directives,
    head_length,
    kept_directive,
    read_options,
    script_lines,
)
from airflow_megatron.spec.documents.quantities import slurm_time
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.expressions.file_values import path_of
from airflow_megatron.spec.expressions.resolution import script_environment
from airflow_megatron.spec.layout.run_layout import SweepLayout, tracker_of
from airflow_megatron.spec.model.launch import COMMAND, CONTAINER_RUNTIMES, LAUNCHERS, ContainedJob, Launch
from airflow_megatron.spec.model.stage_kinds import PREFETCHED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.slurm.states.observation import QueueRow
    from airflow_megatron.slurm.submission.queue_ahead import StageBefore
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import ContainerSection

DEFAULT_SIGNAL_BEFORE_S = 120
_ON_SOME_RANKS = (
    "ranks=$1 words=$2; shift 2; rank=${RANK:-${SLURM_PROCID:-${PMI_RANK:-0}}}; "
    'case " $ranks " in *" $rank "*) ;; *) shift "$words" ;; esac; exec "$@"'
)
_LOAD = "LOAD"
"""Variable in which a launch script of the trainer's own finds the checkpoint to start from."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ATTEMPT = re.compile(r"\.a([0-9]{1,9})\.([0-9a-f]{6})\Z")
"""End of the Slurm name of an attempt: its number, and the digest of its stage's directory."""


class JobScriptError(AirflowMegatronError, ValueError):
    """A job script that cannot be rendered."""


def attempt_of(job: Job, number: int) -> Attempt:
    """Return the attempt ``number`` of a job.

    Its Slurm name ends in a digest of the stage's directory, so that two checkouts of one sweep on one cluster have
    different job names.
    """
    suffix = f".a{number}.{hashlib.sha256(job.stage_dir.encode()).hexdigest()[:6]}"
    return Attempt(_slurm_name(job.name, suffix), job.stage_dir, number)


def attempts_in_queue(jobs: Iterable[Job], queue: Mapping[str, QueueRow]) -> Iterator[tuple[Job, QueueRow]]:
    """Yield the attempts of jobs that have not ended, found by their exact Slurm names.

    Unlike the records in the run directories, the queue also has the jobs whose run directory was deleted.

    :param queue: job id → squeue's row
    """
    by_digest: dict[str, list[Job]] = {}
    for job in jobs:
        if found := _ATTEMPT.search(attempt_of(job, 1).job_name):
            by_digest.setdefault(found[2], []).append(job)
    for row in queue.values():
        found = _ATTEMPT.search(row.name)
        if found is None or row.state.ended:
            continue
        for job in by_digest.get(found[2], ()):
            if attempt_of(job, int(found[1])).job_name == row.name:
                yield job, row


def array_of(job: Job, cluster: ClusterProfile, token: str) -> Attempt:
    """Return the name and the directory of a new array of jobs of the stage of ``job``.

    :param token: unique letters and digits
    """
    directory = SweepLayout.of(cluster.run_root, job.sweep).array(job.stage, token)
    return Attempt(_slurm_name(f"{job.sweep}.{job.stage}", f".array.{token}"), directory, 1)


def shared_directives(script: str) -> tuple[str, ...]:
    """Return the options in the ``#SBATCH`` lines of a script that jobs can share: all but name, log and directory.

    :return: the options, without the word ``#SBATCH``
    """
    return tuple(text for text in map(kept_directive, head_directives(script)) if text)


def _slurm_name(text: str, suffix: str) -> str:
    name = _name_in_slurm(text)
    if len(name) + len(suffix) > MAX_JOB_NAME_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{name[: MAX_JOB_NAME_LENGTH - len(suffix) - 9]}-{digest}"
    return name + suffix


def sweep_prefix(job: Job) -> str:
    """Return the common prefix of the Slurm names of all attempts of a job's sweep."""
    return _name_in_slurm(f"{job.sweep}.")[: MAX_JOB_NAME_LENGTH // 2]


def point_prefix(sweep: str, point: str) -> str:
    """Return the common prefix of the Slurm names of all attempts of a point's jobs."""
    return _name_in_slurm(f"{sweep}.{point}.")[: MAX_JOB_NAME_LENGTH // 2]


def _name_in_slurm(name: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9._=+:@-]", "_", name)
    return safe if safe[:1].isalnum() else f"job{safe}"


def render_job_script(
    job: Job,
    cluster: ClusterProfile,
    number: int,
    templates: Path | Mapping[str, str],
    *,
    branch_arguments: Sequence[str] = (),
    needed_to_start: str | None = None,
    exclude: Iterable[str] = (),
    chained: bool = False,
    before: StageBefore | None = None,
    origins: Origins | None = None,
) -> str:
    """Render the script of an attempt.

    :param job: the job with its complete command
    :param number: number of the attempt, from 1
    :param templates: folder of the templates, or name → text of the templates that a run has pinned
    :param branch_arguments: appended to the command while the branch has no checkpoint
    :param needed_to_start: path that these arguments name and that must exist
    :param exclude: excluded nodes, in addition to those of the spec
    :param chained: whether the attempt is submitted before the end of the previous attempt
    :param before: the previous stage, if the attempt is submitted before that stage has ended
    :param origins: programs and inputs to record as provenance; None records nothing
    :raises JobScriptError: if the template is missing or uses an undefined name
    """
    if job.script is not None:
        return guarded_script(job, cluster, number, exclude=exclude, before=before)
    if job.work_dir is not None:
        raise JobScriptError(
            f"{job.name} needs the script template {job.template}, which its spec names beside itself; put it there"
            if job.template
            else f"{job.name} has no template, so there is no script to submit; add template: …"
        )
    environment = _templates(templates if isinstance(templates, Path) else tuple(sorted(templates.items())))
    words = (*job.command, *branch_arguments)
    paths = dict.fromkeys(path for word in words if (path := path_of(word)) is not None)
    file_values = {path: f"am_file_value_{index}" for index, path in enumerate(paths)}
    name = template_name(job)
    attempt = attempt_of(job, number)
    processes = job.world_size if job.runs_trainer and not job.own_launch else 1
    launch = _launch(job, cluster, attempt, processes)
    launched_by = LAUNCHERS[cluster.launcher_of(job.trainer)]
    try:
        template = environment.get_template(name)
        return template.render(
            # templates write the name into comments and messages; a file of another tool may put anything into it
            job=msgspec.structs.replace(job, name=_name_in_slurm(job.name)),
            cluster=cluster,
            attempt=attempt,
            number=number,
            trainer=job.trained_by,
            directives=_directives(job, cluster, attempt, number, exclude),
            prologue=_prologue(attempt, before)
            + _prefetched_lines(job)
            + _layout_lines(job, cluster)
            + niceness_lines(cluster)
            + (_chain_prologue(job, number) if chained else "")
            + (recording_lines(origins, attempt.directory, cluster.run_root) if origins else ""),
            epilogue=job_epilogue(),
            env=_environment(job, cluster),
            command=(*_wrapper(job), *job.command),
            monitor=sampling_functions() if job.monitor else "",
            secrets=_secret_files(job, attempt),
            secret_reader=shell_file("job_secret"),
            branch_arguments=tuple(branch_arguments),
            needed_to_start=needed_to_start,
            file_values=file_values,
            launcher=_launcher(job, cluster, launch),
            launched_by=cluster.launcher_of(job.trainer),
            launch_preparation=launched_by.preparation(launch) if processes > 1 else "",
            launch_rest=launched_by.rest(launch) if processes > 1 else COMMAND,
            alone=_launcher(job, cluster, _launch(job, cluster, attempt, 1)),
            processes=processes,
            nodes=job.slurm.nodes or 1,
        )
    except jinja2.TemplateNotFound as error:
        where = templates if isinstance(templates, Path) else "what the run has pinned"
        raise JobScriptError(f"there is no sbatch template {error.name} in {where}") from error
    except jinja2.TemplateError as error:
        where = templates / name if isinstance(templates, Path) else f"{name}, as the run has pinned it"
        raise JobScriptError(f"{where}: {error.message}") from error


def template_name(job: Job) -> str:
    """Return the name of the template of a job's script."""
    return job.template or job.stage_kind.template


def is_shipped_template(name: str, folder: Path) -> bool:
    """Return whether a template, with all that it includes, is as shipped, so that it adds no arguments to commands.

    :param folder: folder of the cluster's templates
    """
    return template_texts(folder, [name]) == template_texts(shipped("sbatch"), [name])


def template_texts(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return templates with all templates that they extend, include or import: name → text.

    :param folder: folder of the templates
    :param names: names of the templates; missing ones are left out
    """
    environment = _templates(folder)
    loader: Any = environment.loader
    texts: dict[str, str] = {}
    wanted = list(names)
    while wanted:
        name = wanted.pop()
        if name in texts:
            continue
        try:
            texts[name] = loader.get_source(environment, name)[0]
            for other in jinja2.meta.find_referenced_templates(environment.parse(texts[name])):
                # None: an expression whose value is known only at rendering
                wanted += [other] if other else environment.list_templates(extensions=["j2"])
        except (jinja2.TemplateError, OSError, UnicodeDecodeError):
            continue
    return texts


def _wrapper(job: Job) -> tuple[str, ...]:
    """Return the wrapper before the training command; ranks that it is not for run the command without it."""
    if job.wrapper and job.own_launch:
        raise JobScriptError(f"{job.command[0]} starts the processes itself; wrapper cannot reach them")
    if not job.wrapped_ranks:
        return job.wrapper
    ranks = " ".join(map(str, job.wrapped_ranks))
    return ("bash", "-c", _ON_SOME_RANKS, "wrapper", ranks, str(len(job.wrapper)), *job.wrapper)


@functools.lru_cache(maxsize=64)
def _templates(source: Path | tuple[tuple[str, str], ...]) -> jinja2.Environment:
    """Return the environment of a folder's templates, which recompiles changed files, or of the given texts."""
    environment = script_environment(
        source if isinstance(source, Path) else dict(source), [OtherPackagesTemplates()]
    )
    environment.filters["quote"] = _quoted
    environment.filters["words"] = _words
    return environment


def _chain_prologue(job: Job, number: int) -> str:
    previous = attempt_of(job, number - 1).directory
    return chain_prologue(previous, tracker_of(job.checkpoint_dir), job.last_iteration or 0)


def _prologue(attempt: Attempt, before: StageBefore | None) -> str:
    """Return the lines that check at the start of a job whether it runs its attempt."""
    guard = job_prologue(attempt.directory)
    if before is None:
        return guard
    return ahead_identity(attempt.directory, before.behind.token) + guard + ahead_guard(before)


def _prefetched_lines(job: Job) -> str:
    """Return the lines that end a job at its start if prefetched files are missing."""
    items = job.env.get(PREFETCHED)
    if not items:
        return ""
    return f"{shell_file('prefetched')}\nam_check_prefetched {quote(items)} || exit\n"


def _layout_lines(job: Job, cluster: ClusterProfile) -> str:
    """Return the lines that set the striping of a new directory of checkpoints from the profile."""
    if cluster.storage is None or cluster.storage.stripe is None or not job.trains:
        return ""
    words = " ".join(map(quote, cluster.storage.stripe.split()))
    return f"{shell_file('checkpoint_layout')}\nam_set_layout {quote_path(job.checkpoint_dir)} {words}\n"


def guarded_script(
    job: Job,
    cluster: ClusterProfile,
    number: int,
    *,
    exclude: Iterable[str] = (),
    before: StageBefore | None = None,
) -> str:
    """Return a user's script with the guard, which runs the attempt exactly once and records its end.

    The ``#SBATCH`` lines of the script are kept, except for those of the job's name, log and directory. The guard
    follows them. ``am_run`` cannot stop a complete script, so signals reach it as Slurm sends them.

    :raises JobScriptError: if the script does not begin with ``#!``
    """
    lines = script_lines(job.script or "")
    if not lines or not lines[0].startswith("#!"):
        raise JobScriptError(f"the script of {job.name} must begin with #!/bin/bash")
    attempt = attempt_of(job, number)
    options = {
        "job-name": attempt.job_name,
        "output": job.log_file(number).replace("%", "%%"),
        "open-mode": "append",
        "chdir": job.work_dir or job.run_dir,
        "exclude": ",".join(exclude) or None,
        "comment": None,
        "error": None,
    }
    head = head_length(lines)
    kept = [lines[0]]
    for line in lines[1:head]:
        if not line.startswith(DIRECTIVE):
            kept.append(line)
        elif directive := kept_directive(line.removeprefix(DIRECTIVE)):
            kept.append(f"{DIRECTIVE} {directive}")
    given = kept_directive(shlex.join(job.slurm.options))  # command-line options override those of the script
    kept += [f"{DIRECTIVE} {_one_line('options', given)}"] if given else []
    ours = [
        f"{DIRECTIVE} --{name}={quote(_one_line(name, value))}"
        for name, value in options.items()
        if value is not None
    ]
    added = [_prologue(attempt, before), niceness_lines(cluster)]
    if secrets := _secret_files(job, attempt):
        reading = (f"am_secret {name} {quote(path)} || exit" for name, path in secrets.items())
        added += [shell_file("job_secret"), *reading]
    return "\n".join([kept[0], *ours, *kept[1:], *added, *lines[head:], ""])


_GPU_REQUEST = re.compile(r"--(?:gres=(?:.*,)?gpu\b|gpus(?:-per-node)?=)")
"""sbatch options with which a job requests its GPUs instead of the cluster's default option."""


def _directives(
    job: Job, cluster: ClusterProfile, attempt: Attempt, number: int, exclude: Iterable[str]
) -> list[str]:
    slurm = job.slurm
    options: dict[str, object] = {
        "job-name": attempt.job_name,
        "output": job.log_file(number).replace("%", "%%"),
        "open-mode": "append",
        "chdir": job.run_dir,
        "nodes": slurm.nodes or 1,
    }
    processes_per_node = slurm.gpu_processes if job.runs_trainer else 1
    if _one_task_per_process(cluster, job):
        options["ntasks-per-node"] = processes_per_node
    else:
        options["ntasks-per-node"] = 1
    options["cpus-per-task"] = _cpus_of_task(cluster, job)
    if slurm.gpus_per_node and cluster.gpu_option != "none":
        kind = cluster.partition(slurm.partition).gpu_type
        count: object = slurm.gpus_per_node
        if cluster.gpu_option == "gpus-per-task" and _one_task_per_process(cluster, job):
            count = slurm.gpus // slurm.gpu_processes
        gpus = f"{kind}:{count}" if kind else count
        options[cluster.gpu_option] = f"gpu:{gpus}" if cluster.gpu_option == "gres" else gpus
    if slurm.time:
        options["time"] = slurm_time(slurm.time)
        if job.runs_trainer:
            before = slurm.signal_before or min(DEFAULT_SIGNAL_BEFORE_S, slurm.time // 4)
            # Slurm signals a launcher under srun directly; the script's trap signals one in the batch shell
            options["signal"] = f"{'' if _uses_srun(cluster, job) else 'B:'}TERM@{before}"
    for name in ("mem", "partition", "account", "qos", "constraint", "reservation"):
        options[name] = getattr(slurm, name)
    excluded = ",".join([*([slurm.exclude] if slurm.exclude else []), *exclude])
    options["exclude"] = excluded or None
    own = f"--{cluster.gpu_option}="
    if any(_GPU_REQUEST.match(option) or option.startswith(own) for option in slurm.options):
        options.pop(cluster.gpu_option, None)
    lines = [
        f"--{name}={quote(_one_line(name, value))}" for name, value in options.items() if value is not None
    ]
    return lines + [_one_line("options", option) for option in slurm.options]


def _uses_srun(cluster: ClusterProfile, job: Job) -> bool:
    launcher = LAUNCHERS[cluster.launcher_of(job.trainer)]
    return job.runs_trainer and not job.own_launch and launcher.under_srun(job.slurm.nodes or 1)


def _one_task_per_process(cluster: ClusterProfile, job: Job) -> bool:
    launcher = LAUNCHERS[cluster.launcher_of(job.trainer)]
    return job.runs_trainer and (launcher.one_task_per_process or job.own_launch)


def _cpus_of_task(cluster: ClusterProfile, job: Job) -> int | None:
    """Return the CPU cores of one Slurm task; with torchrun, one task holds all processes of a node."""
    if not job.slurm.cpus_per_task:
        return None
    together = job.runs_trainer and not _one_task_per_process(cluster, job)
    return job.slurm.cpus_per_task * (job.slurm.gpu_processes if together else 1)


def container_of(job: Job, cluster: ClusterProfile) -> ContainerSection | None:
    """Return the container of a job: that of the job, else that of its partition, else that of the profile.

    A container of the job replaces the software, not the settings of the site: it also gets the directories that the
    profile binds, and the runtime options of the profile (which select the GPUs) if the job has none.
    """
    of_site = cluster.partition(job.slurm.partition).container or cluster.container
    own = job.container
    if own is None or of_site is None:
        return own or of_site
    update: dict[str, list[str]] = {"binds": [*dict.fromkeys((*of_site.binds, *own.binds))]}
    if not own.options and own.runtime == of_site.runtime:
        update["options"] = of_site.options
    return own.model_copy(update=update)


def _launch(job: Job, cluster: ClusterProfile, attempt: Attempt, processes: int) -> Launch:
    """Return the parameters of the launcher."""
    return Launch(
        python=cluster.python_of(job.trainer),
        processes=processes,
        per_node=job.slurm.gpu_processes,
        nodes=job.slurm.nodes or 1,
        hosts_file=quote(attempt.files.hosts),
        wrapped=bool(job.wrapper),
        named=cluster.master_addr is not None,
        local_addr=cluster.local_addr,
    )


def niceness_lines(cluster: ClusterProfile) -> str:
    """Return the lines that lower the priority of the job's processes; none without ``nice`` in the profile.

    If the kernel groups processes by session (``kernel.sched_autogroup_enabled``), a nice value has an effect only
    within the session, and the nice value of the session must be set too (sched(7)).
    """
    if not cluster.nice:
        return ""
    return (
        f"renice -n {cluster.nice} -p $$ >/dev/null\n"
        f"! [ -w /proc/self/autogroup ] || echo {cluster.nice} 2>/dev/null >/proc/self/autogroup\n"
    )


def _launcher(job: Job, cluster: ClusterProfile, launch: Launch) -> list[str]:
    """Return the words before the command: srun, container, torchrun; values known only in the job are variables."""
    name = cluster.launcher_of(job.trainer)
    launcher = LAUNCHERS[name]
    if job.runs_trainer and not launcher.for_every_trainer and name not in job.trained_by.launchers:
        raise JobScriptError(
            f"{name} does not pass ranks to {job.trainer}; use the launcher torchrun or srun"
        )
    container = container_of(job, cluster)
    runtime = CONTAINER_RUNTIMES[container.runtime] if container else None
    in_container = runtime.words(container, _contained(job, cluster)) if container and runtime else []
    by_srun = runtime is not None and runtime.by_srun
    several = launch.processes > 1
    words: list[str] = []
    if by_srun or (several and _uses_srun(cluster, job)):
        if cluster.gpu_option == "gpus-per-task" and job.slurm.gpus and _one_task_per_process(cluster, job):
            # with them each process sees only its own GPU, and LOCAL_RANK, a number on the node, is invalid;
            # with --gpu-bind=none, a process sees no GPU in Slurm 22.05
            words += ["env", *(word for name in _gpu_shares(job) for word in ("-u", name))]
        words += ["srun", "--kill-on-bad-exit=1"]
        # since Slurm 22.05, srun does not inherit this option from sbatch, and a task would get one core
        cpus = _cpus_of_task(cluster, job)
        words += [f"--cpus-per-task={cpus}"] if cpus else []
        if not several and job.runs_trainer and job.world_size > 1:
            words += ["--nodes=1", "--ntasks=1"]
        words += in_container if by_srun else []
    apart = runtime is not None and (runtime.by_srun or not runtime.inherits)
    if several and apart and not launcher.reaches_srun_containers and container:
        raise JobScriptError(f"{name} cannot start a {container.runtime} container; use the launcher srun")
    words += launcher.words_before_container(launch) if several else []
    words += [] if by_srun else in_container
    return words + (launcher.words(launch) if several else [])


def _gpu_shares(job: Job) -> tuple[str, ...]:
    """Return the variables by which sbatch makes srun give each task only its own GPUs.

    sbatch of Slurm 24.11 and 26.05 also sets the binding, unless the job has one of its own.
    """
    bound = any(option.name in ("gpu-bind", "tres-bind") for option in read_options(job.slurm.options))
    return ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", *(() if bound else ("SLURM_TRES_BIND",)))


def _contained(job: Job, cluster: ClusterProfile) -> ContainedJob:
    names = [*job_environment(job, cluster), *job.secrets, *job.delivered]
    if job.own_launch:
        names.append(_LOAD)
    return ContainedJob(gpus=bool(job.slurm.gpus_per_node), variables=tuple(dict.fromkeys(names)))


def _secret_files(job: Job, attempt: Attempt) -> dict[str, str]:
    """Return the files from which an attempt reads its secrets: variable → path."""
    delivered = {name: delivered_file(attempt.directory, name) for name in job.delivered}
    return {**job.secrets, **delivered}


def job_environment(job: Job, cluster: ClusterProfile) -> dict[str, str]:
    """Return the environment of a rendered script: variables of the cluster, the trainer, the partition and the job."""
    # the script itself has checked prefetched files before
    own = {key: str(value) for key, value in job.env.items() if key != PREFETCHED}
    return {**profile_environment(cluster, job.trainer, job.slurm.partition), **own}


def profile_environment(cluster: ClusterProfile, trainer: str, partition: str | None) -> dict[str, str]:
    """Return the variables that a profile sets for jobs of a trainer on a partition."""
    given = (cluster.env, cluster.trainer(trainer).env, cluster.partition(partition).env)
    return {key: str(value) for values in given for key, value in values.items() if key != PREFETCHED}


def _environment(job: Job, cluster: ClusterProfile) -> dict[str, str]:
    env = job_environment(job, cluster)
    for name in (*env, *job.secrets, *job.delivered):
        if not _ENV_NAME.match(name):
            raise JobScriptError(
                f"{name!r} cannot be the name of an environment variable; use letters, digits and '_'"
            )
    return env


def _one_line(name: str, value: object) -> str:
    text = str(value)
    if any(ord(character) < 32 for character in text):
        raise JobScriptError(f"slurm.{name} {text!r} holds a control character; an #SBATCH line cannot")
    return text


def _quoted(value: object) -> str:
    return quote(str(value))


@jinja2.pass_context
def _words(context: jinja2.runtime.Context, values: Iterable[object]) -> str:
    """Return quoted shell words; values read from a file are replaced by their shell variables."""
    file_values: Mapping[str, str] = context["file_values"]
    return " ".join(
        quote(str(value)) if (path := path_of(value)) is None else f'"${file_values[path]}"'
        for value in values
    )
