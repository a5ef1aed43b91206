"""A sweep that measures one short training at each point: ``benchmark`` in place of ``stages``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.schema import MeasureSection, StageSection

if TYPE_CHECKING:
    from airflow_megatron.spec.documents.yaml_document import YamlDocument
    from airflow_megatron.spec.model.schema import SweepSpecSection

STAGE = "benchmark"
"""Name of the only stage of such a sweep."""


def with_stages(spec: SweepSpecSection, document: YamlDocument) -> SweepSpecSection:
    """Return the spec with the stage that its benchmark stands for.

    :raises SpecError: if it has neither stages nor a benchmark, or both
    """
    benchmark = spec.benchmark
    if benchmark is None:
        if not spec.stages:
            raise SpecError(document.problem((), "'stages' is missing", "add stages: …, or benchmark: …"))
        return spec
    if spec.stages:
        raise SpecError(
            document.problem(("benchmark",), "benchmark stands in place of stages", "drop one of the two")
        )
    stage = StageSection(
        kind="benchmark",
        megatron={"train_iters": benchmark.iterations},
        expect=benchmark.expect,
        measure=MeasureSection(skip=benchmark.skip, reported=benchmark.reported),
    )
    return spec.model_copy(update={"stages": {STAGE: stage}})
