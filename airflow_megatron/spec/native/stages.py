"""Values that the jobs of a stage share at every point of a native sweep, computed once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from airflow_megatron.spec.documents.quantities import parse_duration, parse_interval
from airflow_megatron.spec.expressions.resolution import evaluate_tree, template_names, templates, within
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.model.schema import (
    HealthSection,
    RestartSection,
    SlurmSection,
    StageSection,
    declarations,
)
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.model.stage_tree import instances_of
from airflow_megatron.spec.native.conditions import duration_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.schema import SecretSection, SweepSpecSection
    from airflow_megatron.spec.model.stage_kinds import StageKind
    from airflow_megatron.spec.model.stage_tree import StageInstance

_RESTART_TIMES = ("backoff", "exclude_for")
_STALL_TIMES = {"after": parse_duration, "startup": parse_interval, "quiet": parse_interval}
RESOURCES = ("nodes", "gpus_per_node", "cpus_per_task")


@dataclass(frozen=True)
class StageRecipe:
    """What the jobs of one stage instance have in common at every point.

    :param section: the stage in the spec
    :param below: values that a point's own override
    :param above: values that override a point's own
    :param wanted: the names that the stage itself needs, those that the point varies apart; None for all
    :param slurm: resources, expressions not yet evaluated
    :param fixed_slurm: the resources, where they hold no expression
    :param env: environment, expressions not yet evaluated
    :param secrets: variable → where its value is, expressions not yet evaluated
    :param explicit_arguments: names in ``megatron:`` sections
    :param variables: names in ``params:`` sections, and of resources
    :param visible: name that expressions may use for an earlier stage → its instance
    :param restart: the restart policy
    :param health: of a training: what is looked for in its log, expressions not yet evaluated; None for nothing
    """

    section: StageSection
    below: Mapping[str, Any]
    above: Mapping[str, Any]
    wanted: frozenset[str] | None
    slurm: Mapping[str, Any]
    fixed_slurm: JobResources | None
    env: Mapping[str, Any]
    secrets: Mapping[str, SecretSection]
    explicit_arguments: tuple[str, ...]
    variables: tuple[str, ...]
    visible: Mapping[str, str]
    restart: RestartSection
    health: Mapping[str, Any] | None

    def restart_at(self, names: Mapping[str, Any]) -> RestartSection:
        """Return the restart policy with its expressions evaluated."""
        if not self._restart_varies:
            return self.restart
        values = {key: evaluate_tree(value, names) for key, value in self._restart_values.items()}
        for key in _RESTART_TIMES:
            with within("restart", key):
                values[key] = duration_seconds(values[key], f"restart.{key}")
        return self.restart.model_copy(update=values)

    def health_at(self, names: Mapping[str, Any]) -> HealthSection | None:
        """Return the health rules with their expressions evaluated."""
        return (
            _checked_health(evaluate_tree(self.health, names)) if self._health_varies else self._fixed_health
        )

    @functools.cached_property
    def _restart_varies(self) -> bool:
        return any(templates(list(self._restart_values.values())))

    @property
    def _restart_values(self) -> dict[str, Any]:
        return {key: getattr(self.restart, key) for key in ("after_rollback", *_RESTART_TIMES)}

    @functools.cached_property
    def _health_varies(self) -> bool:
        return any(templates(self.health))

    @functools.cached_property
    def _fixed_health(self) -> HealthSection | None:
        return _checked_health(self.health)


class StageRecipes:
    """The recipes of a stage tree on one cluster.

    :param tree: stage instances, parents first
    :ivar extra_arguments: what the spec declares, by flag
    :param main_branch: the instance that works in the point's own directory, or None
    """

    def __init__(
        self, spec: SweepSpecSection, tree: Sequence[StageInstance], cluster: ClusterProfile
    ) -> None:
        self.spec, self.tree, self.cluster = spec, tree, cluster
        self.extra_arguments = declarations(spec.extra_arguments)
        self.by_name: dict[str, StageRecipe] = {
            instance.name: self._recipe(instance, index) for index, instance in enumerate(tree)
        }
        roots = [item for item in tree if item.branch == item.name and self._is_root(item)]
        trainings = [item for item in roots if item.trains]
        self.main_branch = next((item.name for item in (*trainings, *roots)), None)

    def _recipe(self, instance: StageInstance, index: int) -> StageRecipe:
        spec, section = self.spec, self.spec.stages[instance.stage]
        slurm = _merged(_with_partition((self.cluster.slurm, spec.slurm, section.slurm), self.cluster))
        fixed = None if any(templates(slurm)) else _fixed(slurm)
        env = {**spec.env, **section.env}
        secrets = {**self.cluster.secrets, **spec.secrets, **section.secrets}
        needs = template_names(section.model_dump(exclude_none=True, exclude={"megatron", "slurm", "filter"}))
        needs |= template_names([*env.values(), *(secret.model_dump() for secret in secrets.values())])
        if section.container is None and spec.container is not None:
            needs |= template_names(spec.container.model_dump())
        kind = STAGE_KINDS[section.kind]
        own = {*section.params, *instance.values, *RESOURCES, *(kind.params or ())}
        return StageRecipe(
            section=section,
            below={
                **{key: slurm.get(key) or 1 for key in RESOURCES},
                **spec.params,
                **self._repeated(instance),
                **spec.megatron,
            },
            above={**section.params, **section.megatron, **instance.values},
            wanted=None if kind.runs_trainer else needs | own,
            slurm=slurm,
            fixed_slurm=fixed,
            env=env,
            secrets=secrets,
            explicit_arguments=tuple(sorted({**spec.megatron, **section.megatron})),
            variables=tuple(sorted({*RESOURCES, *spec.params, *section.params})),
            visible=self._visible(instance, self.tree[:index]),
            restart=_restart(spec.restart, section.restart, kind),
            health=_health(spec.health, section.health) if kind.trains else None,
        )

    def _repeated(self, instance: StageInstance) -> dict[str, Any]:
        """Return the variables for which the stages before it are repeated, and it with them, as far as it reads them.

        Those that no expression reads are left out: one with the name of an argument is an argument of that stage only.
        """
        by_name = {item.name: item for item in self.tree}
        found: dict[str, Any] = {}
        ancestor = by_name.get(instance.parent or "")
        while ancestor is not None:
            found = {**ancestor.values, **found}
            ancestor = by_name.get(ancestor.parent or "")
        if not found:
            return found
        section, others = self.spec.stages[instance.stage], self.spec.model_dump(exclude={"stages", "sweep"})
        read = template_names(section.model_dump(exclude_none=True)) | template_names(others)
        return {name: value for name, value in found.items() if name in read or name in self.spec.params}

    def _visible(self, instance: StageInstance, earlier: Sequence[StageInstance]) -> dict[str, str]:
        """Return what other stages are called: by instance, and by stage where one is meant."""
        names = {item.name: item.name for item in earlier}
        for stage in self.spec.stages:
            meant = [item.name for item in instances_of(stage, instance, self.tree) if item.name in names]
            if stage not in names and len(meant) == 1:
                names[stage] = names[meant[0]]
        return names

    def _is_root(self, instance: StageInstance) -> bool:
        parent = next((item for item in self.tree if item.name == instance.parent), None)
        return instance.scope == "point" and (parent is None or parent.branch is None)


def _fixed(slurm: Mapping[str, Any]) -> JobResources | None:
    """Return resources without expressions; None for refused ones, which each job reports at their place."""
    try:
        return JobResources.model_validate(slurm)
    except ValidationError:
        return None


def _restart(of_sweep: RestartSection, of_stage: RestartSection | None, kind: StageKind) -> RestartSection:
    """Return the policy of a stage; missing keys come from that of the sweep.

    Only trainings are rolled back, so the sweep's ``after_rollback``, which may read what a point varies, is theirs.
    """
    own = of_stage.model_dump(exclude_unset=True) if of_stage else {}
    if not kind.trains:
        own.setdefault("after_rollback", {})
    return of_sweep.model_copy(update=own)


def _health(
    of_sweep: HealthSection | Literal["off"], of_stage: HealthSection | Literal["off"] | None
) -> dict[str, Any] | None:
    """Return the rules of a stage; missing keys come from those of the sweep, if they are enabled."""
    if of_stage == "off" or (of_stage is None and of_sweep == "off"):
        return None
    rules = (HealthSection() if of_sweep == "off" else of_sweep).model_dump()
    own = of_stage.model_dump(exclude_unset=True) if of_stage else {}
    return {detector: {**rules[detector], **own.get(detector, {})} for detector in rules}


def _checked_health(rules: Mapping[str, Any] | None) -> HealthSection | None:
    if rules is None:
        return None
    stall = {
        key: duration_seconds(value, f"health.stall.{key}", _STALL_TIMES[key])
        if key in _STALL_TIMES
        else value
        for key, value in rules["stall"].items()
    }
    return HealthSection.model_validate({**rules, "stall": stall})


def _with_partition(sections: Sequence[SlurmSection], cluster: ClusterProfile) -> Iterator[SlurmSection]:
    """Yield Slurm sections, outermost first, with the defaults of the partition just before the one that names it."""
    naming = next((section for section in reversed(sections) if section.partition is not None), None)
    for section in sections:
        if section is naming:
            partition = cluster.partition(section.partition)
            if partition.gpus_per_node == 0:
                yield SlurmSection(gpus_per_node=0)
            yield partition.slurm
        yield section


def _merged(sections: Iterable[SlurmSection]) -> dict[str, Any]:
    """Return the values of Slurm sections, later ones winning; ``options`` are collected."""
    data: dict[str, Any] = {}
    for section in sections:
        given = section.model_dump(exclude_none=True, exclude_unset=True)
        options = [*data.get("options", []), *given.pop("options", [])]
        data |= given
        if options:
            data["options"] = options
    return data
