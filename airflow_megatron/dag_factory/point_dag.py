"""The DAG of one point: its stage tree as static tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, BaseOperator, Param, TaskGroup
from airflow.sdk.definitions.param import ParamsDict

from airflow_megatron.assets.sweep_assets import announce_stage, stage_alias
from airflow_megatron.dag_factory.callbacks import callbacks
from airflow_megatron.operators.cancel_left import CancelLeftJobsOperator
from airflow_megatron.operators.resolve_point import ResolvePointOperator
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.sensors.checkpoint import CheckpointSensor
from airflow_megatron.sensors.condition import StartConditionSensor
from airflow_megatron.sensors.log import LogSensor
from airflow_megatron.spec.model.cluster_profile import cluster_names
from airflow_megatron.spec.model.dag_names import CANCEL_LEFT, RESOLVE, point_dag_id
from airflow_megatron.spec.trust.plain_text import without_images
from airflow_megatron.task_runtime.stored_plan import MACROS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.spec.model.outline import SweepOutline
    from airflow_megatron.spec.model.stage_tree import StageInstance


def build_point_dag(sweep: SweepOutline, defaults: Mapping[str, object]) -> DAG:
    """Build the DAG of a sweep's points; a run executes one point, and a task is one step of one stage.

    :param sweep: outline of the sweep
    :param defaults: ``default_args``
    """
    with DAG(
        dag_id=point_dag_id(sweep.name),
        description=f"One point of {sweep.name}",
        doc_md=_doc(sweep),
        schedule=None,
        catchup=False,
        # without a schedule no run starts by itself, and in a paused DAG every point would stay queued
        is_paused_upon_creation=False,
        max_active_runs=sweep.settings.max_active_points,
        # deferred tasks do not count; waiting submissions must not block each other
        max_active_tasks=max(16, len(sweep.tree)),
        default_args=dict(defaults),
        render_template_as_native_obj=True,
        tags=["megatron", "point", *sweep.settings.tags],
        user_defined_macros=MACROS,
    ) as dag:
        resolve = ResolvePointOperator(
            task_id=RESOLVE,
            spec_file=sweep.file,
            sweep=sweep.name,
            stages=[instance.name for instance in sweep.tree],
        )
        stages = StageTasks(
            sweep, resolve, fresh_start="{{ dag_run.conf.get('fresh_start', False) }}", of_point=True
        )
        for instance in sweep.tree:
            stages.add(instance)
        stages.add_teardown()
    set_params(
        dag,
        point=Param(
            "",
            type="string",
            title="Point",
            description=f"Its name; `airflow-megatron plan {sweep.name}` lists them",
        ),
        cluster=cluster_param(sweep),
    )
    return dag


def set_params(dag: DAG, **params: Param) -> None:
    """Give a DAG its params when all tasks are in it.

    Airflow would copy them into each task, and check every copy against its schema whenever it stores the DAG, which is
    two thirds of that work. A task's context has the params of its DAG all the same.
    """
    dag.params = ParamsDict(params)


class StageTasks:
    """Builder of the tasks of stages in the current DAG.

    :param sweep: the sweep
    :param source: the task that pushes each stage's job as an XCom
    :param fresh_start: template: whether finished jobs run again
    :param of_point: whether the DAG executes one point, which shares the stages of the whole sweep with other points
    """

    def __init__(
        self, sweep: SweepOutline, source: BaseOperator, fresh_start: str, *, of_point: bool = False
    ) -> None:
        self.sweep, self.source, self.fresh_start, self.of_point = sweep, source, fresh_start, of_point
        self.submits: dict[str, SlurmSubmitOperator] = {}
        self.watches: dict[str, SlurmWatchOperator] = {}
        self._groups: dict[str, TaskGroup] = {}

    def add(self, instance: StageInstance) -> SlurmWatchOperator:
        """Add a stage's tasks: its sensors, ``submit`` and ``watch``."""
        job = self._job(instance.name)
        is_shared = self.of_point and instance.scope == "sweep"
        with self._group(instance.name):
            submit = SlurmSubmitOperator(
                task_id="submit",
                job=job,
                fresh_start=self.fresh_start,
                poll_interval=self.sweep.settings.poll_interval,
                attempt=_submitted(instance),
                shared=is_shared,
            )
            watch = SlurmWatchOperator(
                task_id="watch",
                job=job,
                handle=self._handle(submit),
                poll_interval=self.sweep.settings.poll_interval,
                notify=self.sweep.settings.notify,
                # the runs of other points wait for the same job
                cancel_on_kill=not (is_shared and self.sweep.settings.clusters),
                on_success_callback=callbacks(self.sweep, "finished"),
                outlets=[stage_alias(self.sweep.name, instance.name)],
                post_execute=announce_stage,
            )
            wait = self._wait(instance)
        submit >> watch
        if wait is None:
            (self.watches[instance.parent] if instance.parent else self.source) >> submit
        else:
            before: list[BaseOperator] = [self.submits[stage] for stage in _awaited(instance)]
            before += [self.watches[stage] for stage in instance.after_end]
            for task in before or [self.source]:
                task >> wait
            wait >> submit
        self.submits[instance.name], self.watches[instance.name] = submit, watch
        return watch

    def add_teardown(self) -> None:
        """Add the task that cancels the jobs that a stopped run leaves in Slurm."""
        if not self.watches:
            return
        shared = {instance.name for instance in self.sweep.shared_stages}
        of_others = shared if self.of_point and self.sweep.settings.clusters else set()
        teardown = CancelLeftJobsOperator(
            task_id=CANCEL_LEFT,
            source=self.source.task_id,
            stages=[stage for stage in self.watches if stage not in of_others],
        ).as_teardown()
        for watch in self.watches.values():
            watch >> teardown

    def _wait(self, instance: StageInstance) -> BaseOperator | None:
        if instance.waits == "condition":
            return StartConditionSensor(
                task_id="await_start",
                job=self._job(instance.name),
                producers={stage: self._handle(self.submits[stage]) for stage in _awaited(instance)},
                earlier={
                    stage: self._handle(self.submits[stage])
                    for stage in self._before(instance)
                    if stage not in _awaited(instance)
                },
                # a stage that must have finished may have failed: the sensor reports it
                trigger_rule="all_done" if instance.after_end else "all_success",
                poll_interval=self.sweep.settings.poll_interval,
            )
        if instance.waits == "parent" or instance.parent is None:
            return None
        own, parent = self._planned(instance.name), self._planned(instance.parent)
        paths = f"job_paths({parent}, '{instance.parent}')"
        usual = self.sweep.settings.cluster
        # '%r': Airflow evaluates the result of a template as a Python literal, and "42" or "[0]" is one
        producer: dict[str, Any] = {
            "producer": self._handle(self.submits[instance.parent]),
            "producer_dir": f"{{{{ {paths}.stage_dir }}}}",
            "cluster": f"{{{{ '%r' | format(({parent} or {{'cluster': {usual!r}}})['cluster']) }}}}",
            "pin": f"{{{{ ({parent} or {{}}).get('pin', '') }}}}",
            "poll_interval": self.sweep.settings.poll_interval,
        }
        if instance.waits == "checkpoint":
            return CheckpointSensor(
                task_id="await_checkpoint",
                path=f"{{{{ {paths}.checkpoint_dir }}}}",
                iteration=f"{{{{ ({own} or none) and {own}['depends_on'][0]['iteration'] }}}}",
                **producer,
            )
        return LogSensor(
            task_id="await_log",
            path=f"{{{{ {paths}.log_pattern }}}}",
            pattern=f"{{{{ ({own} or none) and '%r' | format({own}['depends_on'][0]['pattern']) }}}}",
            **producer,
        )

    def _before(self, instance: StageInstance) -> list[str]:
        """Return the ancestors of an instance, nearest first."""
        parents = {item.name: item.parent for item in self.sweep.tree}
        found: list[str] = []
        stage = instance.parent
        while stage:
            found.append(stage)
            stage = parents.get(stage)
        return found

    def _job(self, stage: str) -> str:
        return f"{{{{ {self._planned(stage)} }}}}"

    def _planned(self, stage: str) -> str:
        """Return the expression of a stage's job."""
        return f"planned_job('{self.source.task_id}', '{stage}')"

    @staticmethod
    def _handle(submit: SlurmSubmitOperator) -> str:
        return f"{{{{ ti.xcom_pull(task_ids='{submit.task_id}') }}}}"

    def _group(self, name: str) -> TaskGroup:
        """Return the task group of a stage; ``cooldown_100M.convert`` is inside ``cooldown_100M``."""
        if name not in self._groups:
            parent, _, own = name.rpartition(".")
            self._groups[name] = TaskGroup(group_id=own, parent_group=self._group(parent) if parent else None)
        return self._groups[name]


def _submitted(instance: StageInstance) -> str | None:
    """Return the template of the attempt that the sweep's run has submitted as a task of an array."""
    if not instance.array:
        return None
    return f"{{{{ dag_run.conf.get('submitted', {{}}).get('{instance.name}') }}}}"


def _awaited(instance: StageInstance) -> list[str]:
    """Return the stages that must be submitted before a stage can wait for their outputs."""
    return list(dict.fromkeys(stage for stage in (instance.parent, *instance.after) if stage))


def cluster_param(sweep: SweepOutline) -> Param:
    """Return the parameter that selects a cluster; empty selects all of several clusters."""
    profiles = sorted({*sweep.settings.all_clusters, *cluster_names()})
    if sweep.settings.clusters:
        return Param(
            None,
            type=["null", "string"],
            enum=[None, *profiles],
            title="Cluster",
            description=f"All on this one; where there is room ({', '.join(sweep.settings.clusters)}) when empty",
        )
    return Param(
        sweep.settings.cluster,
        type="string",
        enum=profiles,
        title="Cluster",
        description="Profile in sbatch/clusters/",
    )


def _doc(sweep: SweepOutline) -> str:
    rows = "\n".join(
        f"| `{instance.name}` | {instance.kind} | {instance.parent or ''} |" for instance in sweep.tree
    )
    return (
        f"{without_images(sweep.settings.description)}\n\nEach run works one point of `{sweep.name}`. "
        "Clear a run to work its point again, "
        f"clear a task to run one stage again.\n\n| stage | runs | after |\n| --- | --- | --- |\n{rows}\n"
    )
