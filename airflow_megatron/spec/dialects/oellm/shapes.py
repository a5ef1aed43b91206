"""The stages of related points of an oellm-autoexp sweep, and their jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from airflow_megatron.spec.layout.run_layout import RunLayout
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.model.stage_tree import StageInstance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.dialects.oellm.sweep import SweepPoint
    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import StageKindName


@dataclass(frozen=True)
class Shape:
    """The common parts of families with the same stages.

    :param instances: of the stage tree, one for each point of the family
    :param steps: for each of them, the instances of what is done after its training
    """

    instances: tuple[StageInstance, ...]
    steps: tuple[tuple[StageInstance, ...], ...]

    @property
    def tree(self) -> tuple[StageInstance, ...]:
        """All instances, each before its postprocessing."""
        return tuple(
            item for one, steps in zip(self.instances, self.steps, strict=True) for item in (one, *steps)
        )


@dataclass(frozen=True)
class Built:
    """A job with its sources.

    :param member: the point of the sweep block
    :param instance: its stage
    :param is_step: whether it is done after the point's own job
    :param warnings: warnings about ignored keys
    """

    member: SweepPoint
    instance: StageInstance
    is_step: bool
    configuration: Configuration
    job: Job
    warnings: tuple[str, ...]


def new_instance(
    stage: str,
    kind: StageKindName,
    parent: StageInstance | None,
    tree: Mapping[str, StageInstance],
    taken: set[str],
) -> StageInstance:
    """Return a stage with a name that is unique in its family, and in other shapes unless the stages are equal."""
    base = re.sub(r"[^A-Za-z0-9_-]+", "_", stage).strip("_-") or kind
    name = base
    for number in range(2, len(taken) + len(tree) + 4):
        branch = _branch(name, kind, parent)
        instance = StageInstance(name, stage or kind, kind, "point", parent.name if parent else None, branch)
        if name not in taken and _agree(tree.get(name), instance):
            break
        name = f"{base}_{number}"
    taken.add(name)
    return instance


def _branch(name: str, kind: StageKindName, parent: StageInstance | None) -> str | None:
    """Return the branch of a stage; a stage on a checkpoint outside the sweep has a separate one."""
    if kind == "command":
        return None
    if kind == "train" or parent is None or parent.branch is None:
        return name
    return parent.branch


def without_parent(job: Job) -> Job:
    """Return a job whose parent was removed by a filter; its conditions are checked without a parent."""
    start = job.start
    if start is None and job.depends_on and job.depends_on[0].until == "checkpoint":
        start = Condition(
            "checkpoint", path=RunLayout(str(job.parent_dir)).checkpoint_dir, iteration=job.iteration
        )
    return msgspec.structs.replace(job, depends_on=(), start=start)


def stages_looked_at(job: Job, instance: StageInstance, jobs: Sequence[Job]) -> tuple[str, ...]:
    """Return the stages, other than the parent, that a start condition refers to."""
    if job.start is None:
        return ()
    paths = [text for leaf in job.start.leaves() for text in (leaf.path, leaf.producer)]
    return tuple(
        other.stage
        for other in jobs
        if other.stage not in (instance.name, instance.parent) and other.stage_dir in paths
    )


def _agree(one: StageInstance | None, other: StageInstance) -> bool:
    return one is None or (one.kind, one.parent, one.branch) == (other.kind, other.parent, other.branch)
