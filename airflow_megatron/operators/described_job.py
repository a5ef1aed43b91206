"""Base class of operators whose arguments describe a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.plan.described_job import (
    DescriptionError,
    JobDescription,
    connection_profile,
    restart_section,
    run_directory,
)
from airflow_megatron.task_runtime.deferring_trigger import DeferringTask
from airflow_megatron.task_runtime.stopping import EndsTestRun
from airflow_megatron.task_runtime.stored_plan import cluster_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from airflow.sdk import Context

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

RESOURCES: Final = (
    "nodes",
    "gpus_per_node",
    "cpus_per_task",
    "mem",
    "time",
    "partition",
    "account",
    "qos",
    "constraint",
    "reservation",
    "exclude",
    "options",
)
JOB_RECORD: Final = "job"
"""Key of the submitted job in the task's state."""


class DescribedJobOperator(EndsTestRun, DeferringTask):
    """Describe a Slurm job outside of sweeps.

    The job's directory is ``<work_dir>/<DAG>/<run>/<task>``; the command starts there, its log is ``logs/job-1.out``.

    :param command: the command: a line for bash, or a list of words (templated)
    :param script: instead of a command, the text of a complete sbatch script, which begins with ``#!`` (templated)
    :param slurm_conn_id: Airflow connection to the login node, of type ``slurm`` or ``ssh`` (templated)
    :param ssh_conn_id: alias of *slurm_conn_id* (templated)
    :param cluster: instead of a connection, the name of a cluster profile, whose defaults, modules and environment the
        job gets (templated)
    :param work_dir: directory of jobs on the cluster, shared by all nodes; default: that of the connection, else
        ``airflow-jobs`` in the user's home; with a profile, ``jobs`` in its ``run_root`` (templated)
    :param job_name: prefix of its name in Slurm; default: ``<DAG>.<task>`` (templated)
    :param nodes: number of nodes (templated)
    :param gpus_per_node: GPUs on each node (templated)
    :param cpus_per_task: CPU cores (templated)
    :param mem: memory per node in Slurm's format: ``64G`` (templated)
    :param time: walltime of one attempt: ``6h``, ``06:00:00``, ``30s``, a timedelta (templated)
    :param partition: value of sbatch's ``--partition`` (templated)
    :param account: value of sbatch's ``--account`` (templated)
    :param qos: value of sbatch's ``--qos`` (templated)
    :param constraint: value of sbatch's ``--constraint`` (templated)
    :param reservation: value of sbatch's ``--reservation`` (templated)
    :param exclude: nodes that must not be used (templated)
    :param options: further options of sbatch, as a list of words (templated)
    :param env: environment variables of the command, without those whose value is None; no secrets, because the job
        script contains them (templated)
    :param outputs: list of files that must exist at the end; relative paths are relative to the job's directory
        (templated)
    :param restart: number of restarts after each outcome, with the keys of ``restart`` in a sweep's spec, such as
        ``{"retryable": 10, "failed": 1}``
    """

    template_fields: Sequence[str] = (
        *("command", "script", "slurm_conn_id", "ssh_conn_id", "cluster", "work_dir", "job_name"),
        *RESOURCES,
        *("env", "outputs"),
    )
    template_fields_renderers = {"command": "bash", "script": "bash", "env": "json"}  # noqa: RUF012

    def __init__(
        self,
        *,
        command: str | Sequence[str] | None = None,
        script: str | None = None,
        slurm_conn_id: str | None = None,
        ssh_conn_id: str | None = None,
        cluster: str | None = None,
        work_dir: str | None = None,
        job_name: str | None = None,
        nodes: int | str | None = None,
        gpus_per_node: int | str | None = None,
        cpus_per_task: int | str | None = None,
        mem: str | None = None,
        time: str | int | timedelta | None = None,
        partition: str | None = None,
        account: str | None = None,
        qos: str | None = None,
        constraint: str | None = None,
        reservation: str | None = None,
        exclude: str | None = None,
        options: Sequence[str] | str | None = None,
        env: Mapping[str, Any] | None = None,
        outputs: Sequence[str] | None = None,
        restart: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # templates may turn out empty
        self.describes_job = command is not None or script is not None
        self.command = command
        self.script = script
        self.slurm_conn_id = slurm_conn_id
        self.ssh_conn_id = ssh_conn_id
        self.cluster = cluster
        self.work_dir = work_dir
        self.job_name = job_name
        self.nodes = nodes
        self.gpus_per_node = gpus_per_node
        self.cpus_per_task = cpus_per_task
        self.mem = mem
        self.time = time
        self.partition = partition
        self.account = account
        self.qos = qos
        self.constraint = constraint
        self.reservation = reservation
        self.exclude = exclude
        self.options = options
        self.env = env
        self.outputs = outputs
        self.restart = restart
        self.job: Mapping[str, Any] | str | None = None
        restart_section(restart)  # not templated: an error is reported when the DAG is parsed

    def described_job(self, context: Context, *, template: str | None = None) -> Job:
        """Return the job that the arguments describe.

        :param template: the sbatch template of a command
        :raises AirflowFailException: if the job cannot be submitted
        """
        instance: Any = context["ti"]
        map_index = getattr(instance, "map_index", -1)
        mapped = f".{map_index}" if map_index >= 0 else ""
        try:
            profile, root = self._cluster_and_root()
            run_dir = run_directory(root, instance.dag_id, instance.run_id, instance.task_id, map_index)
            description = JobDescription(
                name=str(self.job_name or "") or f"{instance.dag_id}.{instance.task_id}{mapped}",
                owner=instance.dag_id,
                command=self.command or (),
                script=self.script or None,
                resources={name: getattr(self, name) for name in RESOURCES},
                env=self.env or {},
                outputs=self.outputs or (),
                restart=restart_section(self.restart),
                template=template,
                files=self.job_files(context),
            )
            return description.job(run_dir, profile, is_named=bool(self.cluster))
        except DescriptionError as error:
            raise AirflowFailException(str(error)) from None

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task after a trigger has fired, with the submitted job."""
        if self.describes_job:
            self.job = submitted_job(context)
        return super().resume_execution(next_method, next_kwargs, context)

    def job_files(self, context: Context) -> dict[str, str]:
        """Return the files to write to the job's directory: name → text."""
        return {}

    def _cluster_and_root(self) -> tuple[ClusterProfile, str]:
        """Return the job's cluster profile and the directory of jobs on the cluster."""
        hook = SlurmHook.named(self.slurm_conn_id, self.ssh_conn_id, self.cluster)
        if hook is None:
            profile = cluster_profile(str(self.cluster), "")
            return profile, self.work_dir or f"{profile.run_root.rstrip('/')}/jobs"
        root = self.work_dir or hook.work_dir()
        commands = hook.commands
        profile = connection_profile(
            hook.ssh_conn_id, root, slurm_bin=commands.slurm_bin, login_shell=commands.login_shell
        )
        return profile, root


def submitted_job(context: Context) -> dict[str, Any] | None:
    """Return the job that an earlier process of a task described, as JSON; None without one."""
    record: Any = context["task_state_store"].get(JOB_RECORD)
    return record
