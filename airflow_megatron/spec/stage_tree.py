"""The stage tree of a sweep: which stages exist and what each follows; known without expanding the points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.expressions import is_template

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.schema import StageKind, StageSection, SweepSpecSection
    from airflow_megatron.spec.yaml_document import YamlDocument


@dataclass(frozen=True)
class StageInstance:
    """One node of the stage tree.

    :param name: unique in the tree: ``cooldown_100M``, ``cooldown_100M.convert``
    :param stage: name of the stage in the spec
    :param kind: what it runs
    :param scope: ``sweep`` for stages that run once for all points
    :param parent: name of the instance that it follows, or None
    :param branch: name of the training instance whose run directory it works in, or None
    :param values: variables that ``for_each`` gives to this instance
    """

    name: str
    stage: str
    kind: StageKind
    scope: str
    parent: str | None
    branch: str | None
    values: Mapping[str, Any] = field(default_factory=dict)


def stage_tree(spec: SweepSpecSection, document: YamlDocument) -> tuple[StageInstance, ...]:
    """Build the stage tree in an order in which parents come first.

    :raises SpecError: on an unknown parent, a cycle, a repeated name or a ``for_each`` that is not plain values
    """
    _check_parents(spec, document)
    instances: dict[str, list[StageInstance]] = {}
    for stage in _parents_first(spec, document):
        section = spec.stages[stage]
        made: list[StageInstance] = []
        for parent in _parents_of(section):
            for parent_instance in instances[parent] if parent else [None]:
                for suffix, values in _fan_out(stage, section, document):
                    made.append(_instance(stage, section, parent_instance, suffix, values, instances))
        instances[stage] = made
    tree = tuple(instance for made in instances.values() for instance in made)
    _check_unique(tree, document)
    return tree


def _parents_of(section: StageSection) -> Sequence[str | None]:
    return section.parent if isinstance(section.parent, list) else [section.parent]


def _instance(
    stage: str,
    section: StageSection,
    parent: StageInstance | None,
    suffix: str,
    values: Mapping[str, Any],
    instances: Mapping[str, list[StageInstance]],
) -> StageInstance:
    name = stage
    if section.kind == "train":
        if parent and parent.kind == "train" and len(instances[parent.stage]) > 1:
            name = f"{parent.name}_{stage}"
        branch: str | None = f"{name}{suffix}"
    else:
        branch = parent.branch if parent else None
        name = f"{branch}.{stage}" if branch else stage
    name += suffix
    parent_name = parent.name if parent else None
    return StageInstance(name, stage, section.kind, section.scope, parent_name, branch, values)


def _fan_out(stage: str, section: StageSection, document: YamlDocument) -> list[tuple[str, dict[str, Any]]]:
    if section.for_each is None:
        return [("", {})]
    path = ("stages", stage, "for_each")
    if len(section.for_each) != 1:
        raise SpecError(document.problem(path, "for_each takes one variable", "write budget: [100M, 200M]"))
    variable, choices = next(iter(section.for_each.items()))
    if not choices:
        raise SpecError(document.problem((*path, variable), "for_each has no values", "give one or drop it"))
    fan: list[tuple[str, dict[str, Any]]] = []
    for index, choice in enumerate(choices):
        place = (*path, variable, index)
        values = dict(choice) if isinstance(choice, dict) else {variable: choice}
        label = values.pop("name", None) if isinstance(choice, dict) else choice
        if label is None:
            raise SpecError(
                document.problem(place, "a for_each value of several keys needs a name", "add name: …")
            )
        if is_template(label):
            raise SpecError(
                document.problem(place, "for_each takes plain values", "the DAG's shape is fixed by them")
            )
        text = str(label)
        if not text.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise SpecError(
                document.problem(place, f"{text!r} cannot be part of a name", "letters, digits, '_', '-'")
            )
        fan.append((f"_{text.replace('.', 'p')}", {variable: label, **values}))
    return fan


def _check_parents(spec: SweepSpecSection, document: YamlDocument) -> None:
    problems: list[Problem] = []
    for stage, section in spec.stages.items():
        for parent in _parents_of(section):
            if parent is None:
                continue
            if parent not in spec.stages:
                mend = did_you_mean(parent, spec.stages) or f"stages: {', '.join(spec.stages)}"
                problems.append(
                    document.problem(("stages", stage, "parent"), f"there is no stage {parent!r}", mend)
                )
            elif section.scope == "sweep" and spec.stages[parent].scope != "sweep":
                problems.append(
                    document.problem(
                        ("stages", stage, "parent"),
                        f"a stage that runs once for the sweep cannot follow {parent!r}, which runs at every point",
                        "give it scope: point",
                    )
                )
        if section.start and not any(_parents_of(section)):
            problems.append(
                document.problem(("stages", stage, "start"), "start needs a parent", "add parent: …")
            )
        if section.kind in ("convert", "evaluate") and not any(_parents_of(section)):
            problems.append(
                document.problem(("stages", stage), f"{section.kind} needs a parent", "add parent: …")
            )
        if section.kind == "command" and not section.command:
            problems.append(
                document.problem(
                    ("stages", stage), "kind: command needs a command", "write command: [python, …]"
                )
            )
    if problems:
        raise SpecError(problems)


def _parents_first(spec: SweepSpecSection, document: YamlDocument) -> list[str]:
    ordered: list[str] = []

    def visit(stage: str, chain: tuple[str, ...]) -> None:
        if stage in chain:
            cycle = " → ".join((*chain[chain.index(stage) :], stage))
            raise SpecError(
                document.problem(("stages", stage, "parent"), f"stages follow each other: {cycle}")
            )
        if stage in ordered:
            return
        for parent in _parents_of(spec.stages[stage]):
            if parent:
                visit(parent, (*chain, stage))
        ordered.append(stage)

    for stage in spec.stages:
        visit(stage, ())
    return ordered


def _check_unique(tree: Sequence[StageInstance], document: YamlDocument) -> None:
    seen: dict[str, StageInstance] = {}
    for instance in tree:
        if instance.name in seen:
            raise SpecError(
                document.problem(
                    ("stages", instance.stage),
                    f"two stages are named {instance.name!r}",
                    "rename a stage or value",
                )
            )
        seen[instance.name] = instance
