"""The records in a job's ``.jobs/<stage>`` directory: ``jobid``, ``exit.json`` and ``job.json``."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.trust.json_records import moment, real, whole, word
from airflow_megatron.spec.trust.json_records import read_object as read_object

if TYPE_CHECKING:
    from collections.abc import Mapping

_JOB_ID_RECORD = re.compile(
    r"(?P<job_id>[0-9]+(?:_[0-9]+)?)(?:;(?P<cluster>[A-Za-z0-9_.-]*))?(?:;(?P<job_name>[A-Za-z0-9._=+:@-]+))?"
)


@dataclass(frozen=True)
class SubmittedJob:
    """``jobid``: the Slurm job of an attempt, ``ID[;CLUSTER[;NAME]]``; ``sbatch --parsable`` prints the first two.

    :param job_id: ``7``; ``7_3`` for a task of an array.
    :param cluster: name of the cluster in a multi-cluster set-up, else None.
    :param job_name: Slurm's name of the job if it differs from the attempt's name, as for a task of an array.
    """

    job_id: str
    cluster: str | None = None
    job_name: str | None = None

    @classmethod
    def from_record(cls, text: str) -> SubmittedJob | None:
        """Parse the record; return None for invalid text."""
        found = _JOB_ID_RECORD.fullmatch(text.strip())
        return cls(found["job_id"], found["cluster"] or None, found["job_name"]) if found else None


@dataclass(frozen=True)
class ExitRecord:
    """``exit.json``: how the job script ended; the script writes it.

    :param exit_code: the script's exit status.
    :param signal: the signal that requested the stop (``TERM``, ``USR1`` …), or None.
    :param host: node that ran the script.
    :param nodes: Slurm's node list expression.
    :param started: Unix time at which this run began (of a requeued job: the last run).
    :param ended: Unix time of the end; 0 for one that no calendar has.
    :param job_id: Slurm job id.
    :param restart_count: how often Slurm requeued the job before this run.
    """

    exit_code: int
    signal: str | None
    host: str
    nodes: str
    started: float
    ended: float
    job_id: str
    restart_count: int

    @property
    def ended_well(self) -> bool:
        """Whether the script completed: it neither failed nor received a signal to stop."""
        return self.exit_code == 0 and self.signal is None

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> ExitRecord | None:
        """Parse the record; return None for an invalid *value*."""
        if value is None:
            return None
        exit_code, ended = whole(value.get("exit_code")), real(value.get("ended"))
        if exit_code is None or ended is None:
            return None
        return cls(
            exit_code=exit_code,
            signal=str(value["signal"]) if value.get("signal") else None,
            host=str(value.get("host", "")),
            nodes=str(value.get("nodes", "")),
            started=moment(value.get("started")) or 0.0,
            ended=moment(ended) or 0.0,
            job_id=str(value.get("job_id", "")),
            restart_count=whole(value.get("restart_count"), 0),
        )


@dataclass(frozen=True)
class TaskOrigin:
    """``origin`` in ``job.json``: the Airflow task that submitted the job. Every value is empty if not recorded.

    :param dag_id: id of the DAG.
    :param run_id: id of the DAG run.
    :param run: id of the run of the sweep, which launched the DAG run of a point.
    :param task_id: id of the task.
    :param try_number: number of the try, from 1; 0 if not recorded.
    """

    dag_id: str = ""
    run_id: str = ""
    run: str = ""
    task_id: str = ""
    try_number: int = 0

    @classmethod
    def from_json(cls, value: object) -> TaskOrigin | None:
        """Parse the object in a ``job.json``; return None for an empty or invalid *value*."""
        if not isinstance(value, dict) or not value:
            return None
        return cls(
            dag_id=word(value.get("dag_id")) or "",
            run_id=word(value.get("run_id")) or "",
            run=word(value.get("run")) or "",
            task_id=word(value.get("task_id")) or "",
            try_number=whole(value.get("try_number"), 0),
        )


@dataclass(frozen=True)
class JobRecord:
    """``job.json``: the submitted job, with the data to explain or repeat the attempt.

    :param job: the job's name in the sweep.
    :param attempt: number of the attempt, from 1.
    :param job_name: exact name given to Slurm.
    :param digest: digest of the resolved point.
    :param command: the stage's command line.
    :param log_file: the job's output file on the cluster.
    :param params: swept parameters of the point.
    :param loads: the arguments that load the initial checkpoint of a training; None if not recorded.
    :param origin: the task that submitted the job, None without one (submission from the command line).
    :param exclude: excluded nodes, in addition to those of the spec.
    :param nodes: number of nodes, None for the number in the plan.
    :param arguments: arguments appended to the command.
    :param resumes_from: iteration of the checkpoint that the attempt must load, 0 for none.
    :param after_job: ids of the earlier attempts' jobs, separated by colons, for whose end this job waits in the queue.
    :param first: number of the first attempt of this run of the job, 0 if unknown.
    :param log_from: size of the log in bytes before the attempt.
    :param package: version of this package that submitted the job, empty if not recorded.
    :param pin: digest of the stored plan of the job, empty for none.
    :param behind: the stage for whose end the job waits in Slurm's queue, empty for none.
    :param behind_jobs: the Slurm jobs of that stage.
    """

    job: str
    attempt: int
    job_name: str
    digest: str
    command: tuple[str, ...]
    log_file: str
    params: dict[str, Any]
    loads: tuple[str, ...] | None = None
    origin: TaskOrigin | None = None
    exclude: tuple[str, ...] = ()
    nodes: int | None = None
    arguments: tuple[str, ...] = ()
    resumes_from: int = 0
    after_job: str | None = None
    first: int = 0
    log_from: int = 0
    package: str = ""
    pin: str = ""
    behind: str = ""
    behind_jobs: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object to write."""
        value = {name: list(item) if isinstance(item, tuple) else item for name, item in asdict(self).items()}
        value["origin"] = value["origin"] or {}
        if self.loads is None:
            del value["loads"]
        if not self.behind:
            del value["behind"], value["behind_jobs"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> JobRecord | None:
        """Parse the output of :meth:`to_json`, None without it; unknown keys are ignored, missing keys are empty."""
        if value is None:
            return None
        loads, params = value.get("loads"), value.get("params")
        return cls(
            job=word(value.get("job")) or "",
            attempt=whole(value.get("attempt"), 0),
            job_name=word(value.get("job_name")) or "",
            digest=word(value.get("digest")) or "",
            command=_words(value.get("command")),
            log_file=word(value.get("log_file")) or "",
            params=params if isinstance(params, dict) else {},
            loads=_words(loads) if isinstance(loads, list) else None,
            origin=TaskOrigin.from_json(value.get("origin")),
            exclude=_words(value.get("exclude")),
            nodes=whole(value.get("nodes")),
            arguments=_words(value.get("arguments")),
            resumes_from=whole(value.get("resumes_from"), 0),
            after_job=word(value.get("after_job")),
            first=whole(value.get("first"), 0),
            log_from=whole(value.get("log_from"), 0),
            package=word(value.get("package")) or "",
            pin=word(value.get("pin")) or "",
            behind=word(value.get("behind")) or "",
            behind_jobs=_words(value.get("behind_jobs")),
        )


def _words(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()
