"""The stages of related points of an oellm-autoexp sweep, and their jobs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_megatron.spec.dialects.oellm.jobs import kind_of
from airflow_megatron.spec.dialects.oellm.postprocess import converter_of, steps_of
from airflow_megatron.spec.dialects.oellm.siblings import sibling_references, stage_of
from airflow_megatron.spec.layout.run_layout import RunLayout
from airflow_megatron.spec.model.conditions import Condition
from airflow_megatron.spec.model.stage_tree import StageInstance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.spec.dialects.oellm.siblings import Family, Siblings
    from airflow_megatron.spec.dialects.oellm.sweep import SweepPoint
    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import StageKindName

_STARTS: Final = ("job.start_condition", "job.start_conditions")
_SHAPING: Final = frozenset({"postprocess"})


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


class ShapeBuilder:
    """Make the shapes of the families of one sweep.

    :param siblings: the sibling relation of its points
    :param families: all families
    :param configuration: returns the configuration of a point
    """

    def __init__(
        self,
        siblings: Siblings,
        families: Sequence[Family],
        configuration: Callable[[SweepPoint], Configuration],
    ) -> None:
        self._siblings, self._families, self._configuration = siblings, families, configuration

    def key(self, family: Family) -> tuple[Any, ...]:
        """Return what families of one shape have in common."""
        order = {member.index: position for position, member in enumerate(family)}
        return tuple(
            (
                stage_of(member),
                str(member.parameters.get("backend")),
                str(member.parameters.get("backend.class_name")),
                str(type(member.parameters.get(_STARTS[0]))),
                repr([item for item in member.parameters.items() if item[0].partition(".")[0] in _SHAPING]),
                tuple(order[other.index] for other in self._referred(member)),
            )
            for member in family
        )

    def _referred(self, point: SweepPoint) -> list[SweepPoint]:
        """Return the siblings that a point refers to; those of its start condition come first."""
        parameters = point.parameters
        waiting = [value for key, value in parameters.items() if key.startswith(_STARTS)]
        stages = sibling_references([*waiting, *parameters.values()])
        return [self._siblings.find(point, stage) for stage in stages]

    def new(self, family: Family, tree: Mapping[str, StageInstance]) -> Shape:
        """Return the shape of a family.

        :param tree: stages of the shapes made so far, by name
        """
        kinds = {member.index: kind_of(self._configuration(member)) for member in family}
        instances: dict[int, StageInstance] = {}
        steps: dict[int, tuple[StageInstance, ...]] = {}
        taken: set[str] = set()
        computed = self._computed_stages(family)
        for member in family:
            made = [*instances.values(), *(step for following in steps.values() for step in following)]
            parent = self._parent(member, kinds, instances, made)
            kind = kinds[member.index]
            stage = computed.get(member.index, stage_of(member))
            own = _new_instance(stage, kind, parent, tree, taken)
            instances[member.index] = own
            steps[member.index] = self._new_steps(member, own, tree, taken)
        return Shape(
            tuple(instances[member.index] for member in family),
            tuple(steps[member.index] for member in family),
        )

    def _new_steps(
        self, member: SweepPoint, training: StageInstance, tree: Mapping[str, StageInstance], taken: set[str]
    ) -> tuple[StageInstance, ...]:
        """Return the stages that process the last checkpoint of a training."""
        steps = steps_of(self._configuration(member), training.kind)
        made: dict[str, StageInstance] = {}
        for step in steps:
            parent = training if step.kind == "convert" else made[converter_of(step, steps).name]
            made[step.name] = _new_instance(f"{training.name}_{step.name}", step.kind, parent, tree, taken)
        return tuple(made.values())

    def _computed_stages(self, family: Family) -> dict[int, str]:
        """Return the resolved computed stages of a family that are equal in all families of its shape.

        The names of stages are those of tasks, which all points share.
        """
        places = [place for place, member in enumerate(family) if "${" in stage_of(member)]
        if not places:
            return {}
        key = self.key(family)
        alike = [other for other in self._families if self.key(other) == key]
        resolved = {}
        for place in places:
            names = {str(self._configuration(other[place]).get("stage")) for other in alike}
            if len(names) == 1:
                resolved[family[place].index] = names.pop()
        return resolved

    def _parent(
        self,
        member: SweepPoint,
        kinds: Mapping[int, StageKindName],
        instances: Mapping[int, StageInstance],
        made: Sequence[StageInstance],
    ) -> StageInstance | None:
        referred = [instances[other.index] for other in self._referred(member) if other.index in instances]
        if not referred:
            return None
        if kinds[member.index] == "evaluate":
            branches = {instance.branch for instance in referred}
            for instance in made:
                if instance.kind == "convert" and instance.branch in branches:
                    return instance
        return referred[0]


def _new_instance(
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
