"""Metrics in the results of lm-evaluation-harness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.spec.trust.json_records import real, whole
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class Measurement:
    """The value of one metric in one task. Unknown values are None.

    :param task: name of the task or group
    :param metric: ``acc``, ``byte_perplexity``, …
    :param filter: filter that extracted the answers from the model's text; ``none`` without a filter
    :param value: value of the metric
    :param stderr: its standard error
    :param num_fewshot: number of few-shot examples
    :param higher_is_better: whether a higher value is better
    :param samples: number of evaluated items
    :param version: version of the task
    """

    task: str
    metric: str
    filter: str
    value: float
    stderr: float | None = None
    num_fewshot: int | None = None
    higher_is_better: bool | None = None
    samples: int | None = None
    version: str | None = None

    @property
    def name(self) -> str:
        """``task/metric``, with ``,filter`` for a filter other than ``none``."""
        return f"{self.task}/{self.metric}" + ("" if self.filter == "none" else f",{self.filter}")


def measurements(results: Mapping[str, Any]) -> Iterator[Measurement]:
    """Yield every finite metric value, sorted by the names of tasks and metrics.

    The harness writes ``{"results": {task: {"acc,none": 0.25, "acc_stderr,none": 0.01, "alias": …}}}``; the part behind
    the comma names the filter. Other properties of tasks are under ``n-shot``, ``higher_is_better``,
    ``n-samples`` and ``versions``.

    :param results: content of ``results.json``; entries of another form are skipped.
    """
    for task, figures in sorted(_mapping(results.get("results")).items()):
        better = _mapping(_about(results, "higher_is_better", task))
        samples = _mapping(_about(results, "n-samples", task)).get("effective")
        shots, version = _about(results, "n-shot", task), _about(results, "versions", task)
        for key, value in sorted(_mapping(figures).items()):
            metric, _, filter_name = key.partition(",")
            # sample_len is the number of samples, not a result
            if not _is_finite(value) or metric == "sample_len" or metric.endswith("_stderr"):
                continue
            error = figures.get(f"{metric}_stderr,{filter_name}" if filter_name else f"{metric}_stderr")
            yield Measurement(
                task=shown(task)[:_LONGEST_NAME],
                metric=shown(metric)[:_LONGEST_NAME],
                filter=shown(filter_name)[:_LONGEST_NAME] or "none",
                value=float(value),
                stderr=float(error) if _is_finite(error) else None,
                num_fewshot=whole(shots),
                higher_is_better=flag if isinstance(flag := better.get(metric), bool) else None,
                samples=whole(samples),
                version=shown(str(version))[:_LONGEST_NAME] if version is not None else None,
            )


def _about(results: Mapping[str, Any], section: str, task: str) -> object:
    return _mapping(results.get(section)).get(task)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_finite(value: object) -> bool:
    return not isinstance(value, str) and real(value) is not None
