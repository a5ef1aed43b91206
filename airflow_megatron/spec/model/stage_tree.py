"""The stage tree of a sweep: the stages and their parents, known without expanding the points."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.expressions.resolution import ExpressionError, attribute_names, is_template
from airflow_megatron.spec.model.dag_names import MAX_STAGES, too_many_stages
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, kinds_with

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.model.schema import (
        ConditionSection,
        StageKindName,
        StageSection,
        SweepSpecSection,
    )


MAX_LABEL: Final = 100
"""Maximum number of characters of a ``for_each`` value, or of its name."""

Waits = Literal["parent", "checkpoint", "log", "condition"]

SOURCE_KEYS = {"from_", "iteration", "mode"}
"""Keys of ``start`` that name the source of a stage, not a condition."""


@dataclass(frozen=True)
class StageInstance:
    """One node of the stage tree.

    :param name: unique in the tree: ``cooldown_100M``, ``cooldown_100M.convert``
    :param stage: name of the stage in the spec
    :param kind: kind of the stage
    :param scope: ``sweep`` for stages that run once for all points
    :param parent: name of the instance that it follows, or None
    :param branch: name of the instance whose run directory it uses, or None: a training, or a stage that processes a
        checkpoint outside the sweep
    :param values: variables of this instance from ``for_each``
    :param after: other instances whose submission its start condition needs
    :param after_end: those of them that must have finished
    :param waits: what its submission waits for: the end of its parent, a checkpoint or a line in the log of its
        parent, or another condition
    """

    name: str
    stage: str
    kind: StageKindName
    scope: str
    parent: str | None
    branch: str | None
    values: Mapping[str, Any] = field(default_factory=dict)
    waits: Waits = "parent"
    after: tuple[str, ...] = ()
    after_end: tuple[str, ...] = ()
    array: bool = False

    @property
    def trains(self) -> bool:
        """Whether it writes checkpoints and continues from them."""
        return STAGE_KINDS[self.kind].trains


def stage_tree(spec: SweepSpecSection, document: YamlDocument) -> tuple[StageInstance, ...]:
    """Build the stage tree in an order in which parents come first.

    :raises SpecError: on an unknown parent, a cycle, a repeated name or a ``for_each`` that is not plain values
    """
    _check_parents(spec, document)
    instances: dict[str, list[StageInstance]] = {}
    count = 0
    for stage in _parents_first(spec, document):
        section = spec.stages[stage]
        made: list[StageInstance] = []
        for parent in _parents_of(section):
            for parent_instance in instances[parent] if parent else [None]:
                for suffix, values in _fan_out(stage, section, document):
                    made.append(_instance(stage, section, parent_instance, suffix, values, instances))
                    count += 1
                    if count > MAX_STAGES:
                        raise SpecError(too_many_stages(document, stage))
        instances[stage] = made
    tree = tuple(instance for made in instances.values() for instance in made)
    _check_unique(tree, document)
    return tuple(_with_waits(instance, spec, tree) for instance in tree)


def instances_of(stage: str, instance: StageInstance, tree: Sequence[StageInstance]) -> list[StageInstance]:
    """Return the instances to which ``instance`` refers by the name of a stage or of an instance.

    That is the instance of this name, or the one that it descends from, or those with the same ``for_each`` value,
    or all of the stage's.
    """
    by_name = {other.name: other for other in tree}
    if stage in by_name:
        return [by_name[stage]]
    ancestor = by_name.get(instance.parent or "")
    while ancestor is not None:
        if ancestor.stage == stage:
            return [ancestor]
        ancestor = by_name.get(ancestor.parent or "")
    found = [other for other in tree if other.stage == stage]
    alike = [other for other in found if instance.values and other.values == instance.values]
    return alike or found


def condition_stages(condition: ConditionSection) -> list[str]:
    """Return the stages in a condition, in order."""
    finished = condition.finished or []
    stages = [finished] if isinstance(finished, str) else list(finished)
    stages += [condition.of] if condition.of else []
    for part in (*(condition.all or ()), *(condition.any or ()), condition.not_):
        if part is not None:
            stages += condition_stages(part)
    return list(dict.fromkeys(stages))


def _with_waits(
    instance: StageInstance, spec: SweepSpecSection, tree: Sequence[StageInstance]
) -> StageInstance:
    section = spec.stages[instance.stage]
    if section.each_checkpoint and instance.parent:
        return dataclasses.replace(instance, waits="condition")
    if section.start is None:
        return instance
    given = section.start.model_dump(exclude_none=True, exclude_defaults=True, exclude=SOURCE_KEYS)
    if not given and section.start.from_ is not None:
        return instance
    if given.keys() == {"checkpoint"}:
        return dataclasses.replace(instance, waits="checkpoint")
    if given.keys() == {"log"}:
        return dataclasses.replace(instance, waits="log")

    def named(stages: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(other.name for stage in stages for other in instances_of(stage, instance, tree))
        )

    after = tuple(name for name in named(condition_stages(section.start)) if name != instance.parent)
    after_end = named(_needed_ends(section.start))
    return dataclasses.replace(instance, waits="condition", after=after, after_end=after_end)


def _needed_ends(condition: ConditionSection) -> list[str]:
    """Return the stages that must have finished for a condition to hold."""
    finished = condition.finished or []
    stages = [finished] if isinstance(finished, str) else list(finished)
    for part in condition.all or ():
        stages += _needed_ends(part)
    return stages


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
    if STAGE_KINDS[section.kind].trains:
        if parent and parent.trains and len(instances[parent.stage]) > 1:
            name = f"{parent.name}_{stage}"
        branch: str | None = f"{name}{suffix}"
    else:
        branch = parent.branch if parent else None
        name = f"{branch}.{stage}" if branch else stage
        if section.start is not None and section.start.from_ is not None:
            branch = f"{name}{suffix}"  # its output is from a different checkpoint than its parent's
    name += suffix
    parent_name = parent.name if parent else None
    return StageInstance(
        name, stage, section.kind, section.scope, parent_name, branch, values, array=bool(section.array)
    )


def _fan_out(stage: str, section: StageSection, document: YamlDocument) -> list[tuple[str, dict[str, Any]]]:
    if section.for_each is None:
        return [("", {})]
    path = ("stages", stage, "for_each")
    if len(section.for_each) != 1:
        raise SpecError(document.problem(path, "for_each takes one variable", "write budget: [100M, 200M]"))
    variable, choices = next(iter(section.for_each.items()))
    if not choices:
        raise SpecError(document.problem((*path, variable), "for_each has no values", "give one or drop it"))
    if len(choices) > MAX_STAGES:  # before each of them is looked at
        raise SpecError(too_many_stages(document, stage))
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
        if len(text) > MAX_LABEL:
            message = f"a for_each value of {len(text)} characters becomes part of stage names"
            raise SpecError(
                document.problem(place, message, f"give it a short name: {{name: …, {variable}: …}}")
            )
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
                hint = did_you_mean(parent, spec.stages) or f"stages: {', '.join(spec.stages)}"
                problems.append(
                    document.problem(("stages", stage, "parent"), f"there is no stage {parent!r}", hint)
                )
            elif section.scope == "sweep" and spec.stages[parent].scope != "sweep":
                problems.append(
                    document.problem(
                        ("stages", stage, "parent"),
                        f"a stage that runs once for the sweep cannot follow {parent!r}, which runs at every point",
                        "give it scope: point",
                    )
                )
        problems += _start_problems(stage, section, document)
        problems += _unknown_stages(stage, section, spec, document)
        problems += _array_problems(stage, section, spec, document)
        if section.each_checkpoint:
            problems += _each_checkpoint_problems(stage, section, spec, document)
        kind = STAGE_KINDS[section.kind]
        if kind.works_on and not any(_parents_of(section)) and not _has_source(section):
            what = "a Hugging Face model" if kind.works_on == "models" else "checkpoints"
            hint = f"add parent: …, or start: {{from: DIRECTORY}} for {what} that you have"
            problems.append(document.problem(("stages", stage), f"{section.kind} needs a parent", hint))
        elif kind.works_on == "models" and not _has_source(section) and not _may_have_models(section, spec):
            message = f"{section.kind} needs a Hugging Face model, and no stage before it makes one"
            hint = f"add a stage of kind {' or '.join(kinds_with('makes_models'))} and name it as the parent"
            problems.append(document.problem(("stages", stage, "parent"), message, hint))
        elif (
            kind.works_on == "checkpoints"
            and not _has_source(section)
            and not _may_have_checkpoints(section, spec)
        ):
            message = f"{section.kind} needs checkpoints, and no stage before it saves any"
            hint = f"name a stage of kind {' or '.join(kinds_with('trains'))} as the parent"
            problems.append(document.problem(("stages", stage, "parent"), message, hint))
        if kind.needs_command and not section.command:
            message = f"kind: {section.kind} needs a command"
            problems.append(document.problem(("stages", stage), message, "write command: [python, …]"))
    if problems:
        raise SpecError(problems)


def _has_source(section: StageSection) -> bool:
    """Return whether a stage works on, or starts from, what is outside the sweep."""
    return section.start is not None and section.start.from_ is not None


def _may_have_models(section: StageSection, spec: SweepSpecSection) -> bool:
    """Return whether a stage between the training and this one converts checkpoints or runs a command."""
    waiting, seen = [*_parents_of(section)], set[str]()
    while waiting:
        parent = waiting.pop()
        if parent is None or parent in seen or parent not in spec.stages:
            continue
        seen.add(parent)
        kind = STAGE_KINDS[spec.stages[parent].kind]
        if kind.makes_models or kind.needs_command:
            return True
        if not kind.trains:  # stages before a training do not convert its checkpoints
            waiting += _parents_of(spec.stages[parent])
    return False


def _may_have_checkpoints(section: StageSection, spec: SweepSpecSection) -> bool:
    """Return whether a stage before this one trains, runs a command of its own, or has a source of its own."""
    waiting, seen = [*_parents_of(section)], set[str]()
    while waiting:
        parent = waiting.pop()
        if parent is None or parent in seen:
            continue
        if parent not in spec.stages:  # reported as unknown
            return True
        seen.add(parent)
        other = spec.stages[parent]
        kind = STAGE_KINDS[other.kind]
        if kind.trains or kind.reports_checkpoints or other.command or _has_source(other):
            return True
        waiting += _parents_of(other)
    return False


def _start_problems(stage: str, section: StageSection, document: YamlDocument) -> list[Problem]:
    """Report an invalid source of a stage, and start conditions on a missing parent."""
    start, place = section.start, ("stages", stage, "start")
    if start is None:
        return []
    given = start.model_dump(exclude_none=True, exclude_defaults=True)
    if start.from_ is None:
        alone = next((key for key in ("iteration", "mode") if key in given), None)
        if alone is not None:
            hint = "start: {checkpoint: N}, or from: DIRECTORY for one outside the sweep"
            return [document.problem((*place, alone), f"{alone} is of a checkpoint that from: names", hint)]
        return _parentless_problems(stage, section, document)
    kind = STAGE_KINDS[section.kind]
    if not kind.loads_checkpoint:
        hint = f"from: is for stages of kind {', '.join(kinds_with('loads_checkpoint'))}"
        return [document.problem((*place, "from"), f"{section.kind} loads no checkpoint", hint)]
    if section.scope == "sweep":
        hint = "give the stage scope: point"
        return [document.problem((*place, "from"), "a stage of the whole sweep loads no checkpoint", hint)]
    problems: list[Problem] = []
    if start.checkpoint is not None:
        hint = "from: with iteration: for one outside the sweep, checkpoint: for the parent's; not both"
        problems.append(document.problem((*place, "checkpoint"), "start names two checkpoints", hint))
    if start.mode is not None and not kind.trains:
        message, hint = f"mode is of a training, and the stage is of kind {section.kind}", "drop mode:"
        problems.append(document.problem((*place, "mode"), message, hint))
    return [*problems, *_parentless_problems(stage, section, document)]


def _parentless_problems(stage: str, section: StageSection, document: YamlDocument) -> list[Problem]:
    """Report conditions on the parent's checkpoints or log in the start of a stage without a parent."""
    if section.start is None or any(_parents_of(section)):
        return []
    from_outside = _has_source(section)
    problems: list[Problem] = []
    for path, condition in _parts(section.start, ("stages", stage, "start")):
        if condition.of is not None:
            continue
        if condition.checkpoint is not None and not (from_outside and condition is section.start):
            hint = "add parent: …, or of: STAGE, or from: DIRECTORY for a checkpoint outside the sweep"
            problems.append(document.problem(path, "start needs a parent", hint))
        if condition.log is not None:
            message = "log needs a parent" if from_outside else "start needs a parent"
            place = (*path, "log") if from_outside else path
            problems.append(document.problem(place, message, "add parent: …, or of: STAGE"))
    return problems


def _parts(condition: ConditionSection, path: KeyPath) -> Iterator[tuple[KeyPath, ConditionSection]]:
    """Yield a condition and those nested in it, with their places."""
    yield path, condition
    for word, parts in (("all", condition.all), ("any", condition.any)):
        for index, part in enumerate(parts or ()):
            yield from _parts(part, (*path, word, index))
    if condition.not_ is not None:
        yield from _parts(condition.not_, (*path, "not"))


def _unknown_stages(
    stage: str, section: StageSection, spec: SweepSpecSection, document: YamlDocument
) -> list[Problem]:
    """Report conditions that name a stage that does not exist."""
    problems: list[Problem] = []
    conditions: list[tuple[str, KeyPath, ConditionSection | None]] = [
        *((word, (word,), getattr(section, word)) for word in ("start", "cancel", "finish")),
        *(("when", ("events", index, "when"), event.when) for index, event in enumerate(section.events)),
    ]
    for word, path, condition in conditions:
        for other in condition_stages(condition) if condition else ():
            if _section_of(other, spec) is None:
                hint = did_you_mean(other, spec.stages) or f"stages: {', '.join(spec.stages)}"
                place: KeyPath = ("stages", stage, *path)
                problems.append(
                    document.problem(place, f"{word} names {other!r}, which is not a stage", hint)
                )
            elif other == stage and word in ("cancel", "finish") and stage in _finished_stages(condition):
                message = f"{word} waits for the end of {stage!r} itself"
                problems.append(document.problem(("stages", stage, word), message, "name another stage"))
    return problems


def _finished_stages(condition: ConditionSection | None) -> list[str]:
    finished = (condition and condition.finished) or []
    return [finished] if isinstance(finished, str) else list(finished)


def _array_problems(
    stage: str, section: StageSection, spec: SweepSpecSection, document: YamlDocument
) -> list[Problem]:
    """Report arrays of jobs that cannot all be submitted at once."""
    path = ("stages", stage, "array")
    if not section.array:
        return []
    if section.scope == "sweep":
        return [
            document.problem(path, "a stage that runs once for the sweep is one job, no array", "drop array:")
        ]
    for parent in _parents_of(section):
        if parent in spec.stages and spec.stages[parent].scope == "point":
            message = (
                f"the tasks of an array start together, but {parent!r} ends at another time for each point"
            )
            hint = "keep array: for stages that a point begins with; this one's jobs are submitted one by one"
            return [document.problem(path, message, hint)]
    if section.start and section.start.model_dump(exclude_defaults=True, exclude=SOURCE_KEYS):
        message = "the tasks of an array are submitted together, before the start conditions of the points are checked"
        return [document.problem(path, message, "drop start: or array:")]
    return []


def _each_checkpoint_problems(
    stage: str, section: StageSection, spec: SweepSpecSection, document: YamlDocument
) -> list[Problem]:
    path = ("stages", stage, "each_checkpoint")
    kind = STAGE_KINDS[section.kind]
    if not kind.works_on:
        hint = f"use it in a stage of kind {' or '.join(kinds_with('works_on'))}"
        return [document.problem(path, f"{section.kind} cannot work on each checkpoint", hint)]
    start = section.start.model_dump(exclude_none=True, exclude_defaults=True) if section.start else {}
    if start.keys() - {"from_"}:
        hint = "drop start:" if "from_" not in start else "keep from: in start: and nothing else"
        return [document.problem(path, "each_checkpoint is itself what the stage waits for", hint)]
    if start:
        return []
    for parent in _parents_of(section):
        other = spec.stages.get(parent or "")
        if other and kind.works_on == "checkpoints" and not STAGE_KINDS[other.kind].trains:
            return [document.problem(path, f"{parent!r} saves no checkpoints", "follow a train stage")]
        if other and kind.works_on == "models" and not _converts_each(other):
            hint = f"give {parent!r} each_checkpoint: true as well"
            return [document.problem(path, f"{parent!r} does not convert each checkpoint", hint)]
    return []


def _converts_each(section: StageSection) -> bool:
    return bool(STAGE_KINDS[section.kind].makes_models and section.each_checkpoint)


def _parents_first(spec: SweepSpecSection, document: YamlDocument) -> list[str]:
    ordered: list[str] = []

    def visit(stage: str, chain: tuple[str, ...]) -> None:
        if stage in chain:
            cycle = " → ".join((*chain[chain.index(stage) :], stage))
            hint = "a stage can have only other, earlier stages as parent, in its conditions and in its expressions"
            raise SpecError(
                document.problem(("stages", stage, "parent"), f"stages need each other: {cycle}", hint)
            )
        if stage in ordered:
            return
        for parent in (*_parents_of(spec.stages[stage]), *_read_stages(stage, spec, document)):
            if parent:
                visit(parent, (*chain, stage))
        ordered.append(stage)

    for stage in spec.stages:
        visit(stage, ())
    return ordered


def _read_stages(stage: str, spec: SweepSpecSection, document: YamlDocument) -> list[str]:
    """Return the stages whose names, directories or params a stage's expressions read."""
    section = spec.stages[stage].model_dump(exclude_none=True, exclude={"events", "cancel", "finish"})
    try:
        read = attribute_names(section, "stages")
    except ExpressionError as error:
        raise SpecError(document.problem(("stages", stage), str(error))) from error
    start = spec.stages[stage].start
    named = {_section_of(name, spec) for name in (condition_stages(start) if start else ())}
    return [other for other in spec.stages if (other in read or other in named) and other != stage]


def _section_of(name: str, spec: SweepSpecSection) -> str | None:
    """Return the stage of an instance by its name: ``convert`` for ``cooldown_100M.convert``."""
    own = name.rsplit(".", 1)[-1]
    return next((stage for stage in spec.stages if own == stage or own.startswith(f"{stage}_")), None)


def _check_unique(tree: Sequence[StageInstance], document: YamlDocument) -> None:
    seen: dict[str, StageInstance] = {}
    for instance in tree:
        other = seen.setdefault(instance.name, instance)
        if other is not instance:
            hint = "rename a stage or value"
            if other.stage == instance.stage and other.parent != instance.parent:
                hint = f"{other.parent} and {instance.parent} are of one branch: write a stage after each of them"
            message = f"two stages are named {instance.name!r}"
            raise SpecError(document.problem(("stages", instance.stage), message, hint))
