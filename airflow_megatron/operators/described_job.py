"""What operators that describe a job of their own have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.hooks.slurm import SlurmHook
from airflow_megatron.plan.described_job import (
    DescriptionError,
    JobDescription,
    connection_profile,
    restart_section,
    run_directory,
)
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
"""Key of the task's state under which the job stands that was submitted."""


class DescribedJobOperator(EndsTestRun, BaseOperator):
    """Describe a Slurm job, without any sweep.

    The job's directory is ``<work_dir>/<DAG>/<run>/<task>``; the command starts there, its log is ``logs/job-1.out``.

    :param command: what runs: a line for bash, or a list of words (templated)
    :param script: text of a whole sbatch script instead, which begins with ``#!`` (templated)
    :param slurm_conn_id: Airflow connection to the login node, of type ``slurm`` or ``ssh`` (templated)
    :param ssh_conn_id: the same, for who thinks of it as an SSH connection (templated)
    :param cluster: name of a cluster profile instead, whose defaults, modules and environment the job gets (templated)
    :param work_dir: directory of jobs on the cluster, shared by all nodes; when left out that of the connection, else
        ``airflow-jobs`` in the user's home; with a profile ``jobs`` in its ``run_root`` (templated)
    :param job_name: beginning of its name in Slurm; ``<DAG>.<task>`` when left out (templated)
    :param nodes: number of nodes (templated)
    :param gpus_per_node: GPUs on each node (templated)
    :param cpus_per_task: CPU cores (templated)
    :param mem: memory per node as Slurm takes it: ``64G`` (templated)
    :param time: walltime of one attempt: ``6h``, ``06:00:00``, seconds, a timedelta (templated)
    :param partition: as sbatch takes it (templated)
    :param account: as sbatch takes it (templated)
    :param qos: as sbatch takes it (templated)
    :param constraint: as sbatch takes it (templated)
    :param reservation: as sbatch takes it (templated)
    :param exclude: nodes that must not be used (templated)
    :param options: further options of sbatch, word by word (templated)
    :param env: environment variables of the command, no secrets: they stand in the job's script (templated)
    :param outputs: files that must exist at the end, relative ones in the job's directory (templated)
    :param restart: how many attempts may end in each way and be followed by another: the keys of ``restart`` in a
        sweep's spec, such as ``{"retryable": 10, "failed": 1}``
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
        restart_section(restart)  # not templated: a mistake shows when the DAG is read

    def described_job(self, context: Context, *, template: str | None = None) -> Job:
        """Return the job that the arguments describe.

        :param template: the sbatch template of a command
        :raises AirflowFailException: when it cannot be submitted
        """
        instance: Any = context["ti"]
        map_index = getattr(instance, "map_index", -1)
        mapped = f".{map_index}" if map_index >= 0 else ""
        try:
            profile, root = self._surroundings()
            run_dir = run_directory(root, instance.dag_id, instance.run_id, instance.task_id, map_index)
            description = JobDescription(
                name=self.job_name or f"{instance.dag_id}.{instance.task_id}{mapped}",
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

    @property
    def describes_job(self) -> bool:
        """Whether the arguments describe a job."""
        return bool(self.command or self.script)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a trigger has fired, with the job that was submitted."""
        if self.describes_job:
            self.job = submitted_job(context)
        return super().resume_execution(next_method, next_kwargs, context)

    def job_files(self, context: Context) -> dict[str, str]:
        """Return what the job finds in its directory: name → text."""
        return {}

    def _surroundings(self) -> tuple[ClusterProfile, str]:
        """Return the job's cluster and the directory of jobs there."""
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
    """Return the job that an earlier process of a task has described, as JSON; None where there was none."""
    record: Any = context["task_state_store"].get(JOB_RECORD)
    return record
