"""Render a plan's stage tree as a Mermaid flowchart, for documents and issue threads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.plan.overview import StageOverview

_ENTITIES = str.maketrans({'"': "#quot;", "<": "#lt;", ">": "#gt;", "#": "#35;", "\n": " "})


def mermaid(stages: Sequence[StageOverview]) -> str:
    """Return the flowchart: a box for each stage, arrows labelled with start conditions."""
    numbers = {stage.instance.name: f"s{index}" for index, stage in enumerate(stages)}
    lines = ["flowchart TD"]
    for stage in stages:
        count = f"{len(stage.jobs)} job{'s' if len(stage.jobs) != 1 else ''}"
        node = [_text(stage.instance.name), f"{_text(stage.kind)}, {count}"]
        node += [f"at most {stage.gpu_hours} GPU-hours"] if stage.gpu_hours.hours else []
        node += [f"cancelled by {_text(stage.cancel)}"] if stage.cancel else []
        lines.append(f'    {numbers[stage.instance.name]}["{"<br/>".join(node)}"]')
    for stage in stages:
        instance = stage.instance
        if instance.parent in numbers:
            what = _text(stage.starts.removeprefix(f"{instance.parent} "))
            lines.append(f'    {numbers[instance.parent]} -->|"{what}"| {numbers[instance.name]}')
        lines += [
            f"    {numbers[other]} -.-> {numbers[instance.name]}"
            for other in instance.after
            if other in numbers
        ]
    return "\n".join(lines)


def _text(text: str) -> str:
    return text.translate(_ENTITIES)
