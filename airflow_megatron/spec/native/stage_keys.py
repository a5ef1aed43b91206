"""Keys of a stage that its kind does not read: a stage that has one does something else than its author thinks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.expressions.resolution import templates
from airflow_megatron.spec.model.schema import RestartSection
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS, kinds_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import YamlDocument
    from airflow_megatron.spec.model.schema import StageSection, SweepSpecSection

_OF_TRAININGS: Final = (
    *("nodes", "after_rollback", "chain", "quarantine", "rollbacks", "shrink_after", "from_scratch"),
)
"""Keys of ``restart`` without effect on other stages."""


def unread_keys(spec: SweepSpecSection, document: YamlDocument) -> Iterator[Problem]:
    """Yield the keys of stages that their kinds do not read."""
    expressions = functools.cache(lambda: "\n".join(templates(spec.model_dump(exclude_none=True))))
    for stage, section in spec.stages.items():
        for path, of in _unread(section, expressions):
            message = f"{'.'.join(path)} has no effect in a stage of kind {section.kind}"
            yield document.problem(("stages", stage, *path), message, f"it is for {of}; drop it")


def _unread(section: StageSection, expressions: Callable[[], str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the places of such keys, and what they are for.

    :param expressions: returns all expressions of the spec
    """
    kind = STAGE_KINDS[section.kind]
    trainings = f"stages of kind {' or '.join(kinds_with('trains'))}"
    from_outside = section.start is not None and section.start.from_ is not None
    if section.run_dir is not None and section.scope == "sweep":
        yield ("run_dir",), "stages of each point; one of the whole sweep has a directory by its name"
    elif section.run_dir is not None and not (kind.trains or from_outside):
        yield (
            ("run_dir",),
            f"{trainings}, and for what starts from a directory; this stage has one by its name",
        )
    if section.health not in (None, "off") and not kind.trains:
        yield ("health",), trainings
    if "measure" in section.model_fields_set and kind.reported_as != "benchmark":
        yield ("measure",), "stages of kind benchmark"
    if section.restart is not None and not kind.trains:
        for key in _OF_TRAININGS:
            default = RestartSection.model_fields[key].default
            if key in section.restart.model_fields_set and getattr(section.restart, key) != default:
                yield ("restart", key), trainings
    if section.megatron and not kind.runs_trainer:
        for name in section.megatron:
            if name not in expressions():  # an expression, of this stage or a later one, may read it
                yield ("megatron", name), f"stages of kind {', '.join(kinds_with('runs_trainer'))}"
