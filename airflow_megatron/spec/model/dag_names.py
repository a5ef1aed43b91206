"""The names in a sweep's DAGs that come from its spec, and Airflow's rules for them.

Airflow 3.3 (``airflow.sdk.definitions._internal.node``): a DAG id or task id has at most 250 characters, a group id at
most 200, all of letters, digits, ``_``, ``-`` and ``.``; a tag at most 100 (``airflow.sdk.definitions.dag``). No two
tasks or groups of a DAG share an id, and the dependencies of tasks within a DAG have no cycle.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import YamlDocument
    from airflow_megatron.spec.model.stage_tree import StageInstance
    from airflow_megatron.spec.model.sweep import Sweep

RESOLVE: Final = "resolve"
PLAN: Final = "plan"
ARRAYS: Final = "arrays"
LAUNCH: Final = "launch"
WAIT: Final = "wait"
REPORT: Final = "report"
TRACKERS: Final = "trackers"
CANCEL_LEFT: Final = "cancel_left"

SWEEP_TASKS: Final = frozenset({PLAN, ARRAYS, LAUNCH, WAIT, REPORT, CANCEL_LEFT})
"""Tasks of every sweep's DAG, in addition to those of stages with ``scope: sweep``."""
POINT_TASKS: Final = frozenset({RESOLVE, CANCEL_LEFT})
"""Tasks of every point's DAG, in addition to those of all stages."""
XCOM_KEYS: Final = frozenset({"return_value"})
"""Keys of Airflow's own XComs; jobs are XComs under their stages' names."""
STEPS: Final = ("submit", "watch", "await_checkpoint", "await_log", "await_start")
"""Tasks of a stage."""

MAX_STAGES: Final = 500
"""Stages of a sweep, those that ``for_each`` makes included: some 1,500 tasks in a DAG."""
MAX_WAITS: Final = 10_000
"""Stages that the start conditions of a sweep wait for, see :func:`waits`; each is a dependency of a task."""
MAX_NAME: Final = 100
MAX_POINT: Final = 121
MAX_TAG: Final = 100
MAX_TAGS: Final = 50
MAX_GROUP: Final = 200
MAX_STAGE: Final = 250 - max(len(step) for step in STEPS) - 1
MAX_DESCRIPTION: Final = 10_000
MAX_NOTIFIERS: Final = 100
MAX_ARGUMENTS: Final = 100_000
"""Maximum number of characters of the arguments of all notifiers, which every task of the folder's sweeps reads."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
_STAGE = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\Z")
_POINT = re.compile(rf"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._=+-]{{0,{MAX_POINT - 1}}}\Z")


def is_point_name(text: object) -> TypeGuard[str]:
    """Return whether a point can have this name: a folder, a part of run ids, URIs and Slurm's names."""
    return isinstance(text, str) and _POINT.match(text) is not None


def point_dag_id(sweep: str) -> str:
    """Return the id of a sweep's point DAG."""
    return f"{sweep}.point"


def sweep_of(dag_id: str) -> str:
    """Return the sweep of a DAG; the name of a sweep has no dot."""
    return dag_id.partition(".")[0]


def name_problems(sweep: Sweep) -> Iterator[Problem]:
    """Yield the problems for which Airflow would refuse the name, tags or stages of a sweep."""
    yield from _own_name_problems(sweep)
    yield from _tag_problems(sweep)
    yield from _notifier_problems(sweep)
    yield from _stage_problems(sweep)


def waits(tree: Sequence[StageInstance]) -> int:
    """Return how many stages the tasks of a tree are connected with, beside one parent each.

    A task that waits for a condition knows those that the condition names and those that its stage descends from.
    """
    depths: dict[str | None, int] = {None: 0}
    count = 0
    for instance in tree:  # parents come first
        depth = depths[instance.name] = depths.get(instance.parent, 0) + 1
        count += len(instance.after) + len(instance.after_end)
        count += depth if instance.waits == "condition" else 0
    return count


def too_many_stages(document: YamlDocument, stage: str = "") -> Problem:
    """Return the problem of a sweep with more than :data:`MAX_STAGES` stages."""
    place = ("stages", stage, "for_each") if stage else ("stages",)
    message = f"the sweep has more than {MAX_STAGES} stages, counting each value of for_each"
    return document.problem(place, message, "write fewer for_each values, or sweep over them instead")


def _own_name_problems(sweep: Sweep) -> Iterator[Problem]:
    name = sweep.name
    if _NAME.match(name) and len(name) <= MAX_NAME:
        return
    near = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:MAX_NAME].lstrip("-_") or "my-sweep"
    place = sweep.document.positions.get(("name",))
    what = "name" if place else f"the file's name {Path(sweep.document.file).name!r}"
    message = f"{what} gives the DAG its id, which cannot be {_short(name)}"
    limit = f"letters, digits, '_' and '-', at most {MAX_NAME}"
    yield sweep.document.problem(("name",), message, f"write name: {near}; {limit}")


def _tag_problems(sweep: Sweep) -> Iterator[Problem]:
    if len(sweep.settings.tags) > MAX_TAGS:
        yield sweep.document.problem(
            ("tags",), f"more than {MAX_TAGS} tags", "keep those that somebody filters by"
        )
        return
    for index, tag in enumerate(sweep.settings.tags):
        if not tag.strip() or len(tag) > MAX_TAG:
            what = f"a tag of {len(tag)} characters" if tag.strip() else "an empty tag"
            hint = f"Airflow takes 1 to {MAX_TAG} characters"
            yield sweep.document.problem(("tags", index), what, hint)
    if len(sweep.settings.description) > MAX_DESCRIPTION:
        message = f"a description of {len(sweep.settings.description)} characters"
        yield sweep.document.problem(("description",), message, f"write at most {MAX_DESCRIPTION}")


def _notifier_problems(sweep: Sweep) -> Iterator[Problem]:
    for key, sections in (("notify", sweep.settings.notify), ("trackers", sweep.settings.trackers)):
        if len(sections) > MAX_NOTIFIERS:
            message = f"more than {MAX_NOTIFIERS} {'notifiers' if key == 'notify' else key}"
            yield sweep.document.problem((key,), message, "write fewer")
            return
    size = sum(len(repr(section.arguments)) for section in sweep.settings.notify)
    if size > MAX_ARGUMENTS:
        message = f"arguments of {size:,} characters"
        yield sweep.document.problem(("notify",), message, f"write at most {MAX_ARGUMENTS:,}")


def _stage_problems(sweep: Sweep) -> Iterator[Problem]:
    tree = sweep.tree
    if len(tree) > MAX_STAGES:
        yield too_many_stages(sweep.document)
        return
    if (count := waits(tree)) > MAX_WAITS:
        message = (
            f"its stages wait for {count:,} others, counting each value of for_each and the stages above"
        )
        hint = (
            f"at most {MAX_WAITS:,}: wait for one stage that follows them all, or write fewer for_each values"
        )
        yield sweep.document.problem(("stages",), message, hint)
        return
    names = {instance.name for instance in tree}
    of_sweep = SWEEP_TASKS | ({TRACKERS} if sweep.settings.trackers else set())
    for instance in tree:
        for message, hint in _of_stage(instance, names, of_sweep):
            yield sweep.document.problem(("stages", instance.stage), message, hint)
    made: dict[str, StageInstance] = {}
    for instance in tree:
        for message, hint in _dependency_problems(instance, made):
            yield sweep.document.problem(("stages", instance.stage, "start"), message, hint)
        made[instance.name] = instance


def _dependency_problems(
    instance: StageInstance, made: Mapping[str, StageInstance]
) -> Iterator[tuple[str, str]]:
    """Yield the problems of the dependencies of a stage on other stages, with hints.

    :param made: the stages before it
    """
    name = instance.name
    if name in made:
        yield f"two stages are named {_short(name)}", "rename one"
    waits = (instance.parent, *instance.after, *instance.after_end)
    for other in dict.fromkeys(stage for stage in waits if stage is not None):
        if other == name:
            yield f"the stage {_short(name)} waits for itself", "name a stage that comes before it"
        elif other not in made:
            message = f"the stage {_short(name)} waits for {_short(other)}, which is made after it"
            yield message, "name a stage, or a for_each value, that comes before it"
        elif instance.scope == "sweep" and made[other].scope != "sweep":
            message = f"{_short(name)} runs once for the sweep and waits for {_short(other)} of each point"
            yield message, "give it scope: point"


def _of_stage(
    instance: StageInstance, names: set[str], of_sweep: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield the problems of the name of one stage, with hints."""
    name = instance.name
    reserved = POINT_TASKS | XCOM_KEYS | (of_sweep if instance.scope == "sweep" else frozenset())
    above, _, own = name.rpartition(".")
    if name in reserved:
        yield f"a stage cannot be named {name!r}, which a task of the DAG is", _other_name(name)
    elif own in STEPS and above in names:
        yield (
            f"a stage after {above!r} cannot be named {own!r}, which a task of that stage is",
            _other_name(own),
        )
    if not _STAGE.match(name):
        yield f"a stage cannot be named {_short(name)}", "letters, digits, '_' and '-' only"
    elif len(name) > MAX_STAGE or max(map(len, name.split("."))) > MAX_GROUP:
        message = f"the stage {_short(name)} has a name of {len(name)} characters"
        limit = f"Airflow takes {MAX_STAGE}, and {MAX_GROUP} between two dots"
        yield message, f"shorten it, or give the for_each value a short name: {limit}"


def _other_name(name: str) -> str:
    return f"name it run_{name}"


def _short(name: str) -> str:
    return repr(name) if len(name) <= 60 else f"{name[:40]!r}… ({len(name)} characters)"
