"""A job's resources are plain numbers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.yaml_document import load_yaml_text
from airflow_megatron.spec.model.resources import JobResources
from airflow_megatron.spec.model.schema import RestartSection, SlurmSection, SweepSpecSection, validate


def test_durations_are_seconds() -> None:
    resources = JobResources.model_validate({"time": "01:00:00", "signal_before": "2m"})
    assert (resources.time, resources.signal_before) == (3600, 120)


@pytest.mark.parametrize("key", ["nodes", "gpus_per_node", "cpus_per_task", "time", "signal_before"])
def test_no_expression_is_left(key: str) -> None:
    SlurmSection.model_validate({key: "{{ 1 + 1 }}"})
    with pytest.raises(ValidationError):
        JobResources.model_validate({key: "{{ 1 + 1 }}"})


@pytest.mark.parametrize(
    ("given", "nodes", "gpus", "processes"),
    [({}, 1, 0, 1), ({"nodes": 2, "gpus_per_node": 4}, 2, 4, 4), ({"nodes": 0, "gpus_per_node": 0}, 0, 0, 1)],
)
def test_what_is_not_given(given: dict[str, int], nodes: int, gpus: int, processes: int) -> None:
    resources = JobResources.model_validate(given)
    assert (resources.node_count, resources.gpus, resources.gpu_processes) == (nodes, gpus, processes)


def test_the_policy_has_the_defaults_of_the_section() -> None:
    """A key's default is declared once."""
    from airflow_megatron.slurm.verdicts.restarts import RestartPolicy
    from airflow_megatron.supervision.attempt_preparation import policy_of

    assert policy_of(RestartSection(), training=True) == RestartPolicy()


@pytest.mark.parametrize(("written", "seconds"), [("300", 300), ("5m", 300), ("1.5", 1.5), ("1m30s", 90)])
def test_poll_intervals_have_units_or_are_seconds(written: str, seconds: float) -> None:
    document = load_yaml_text(f"point: p\npoll_interval: {written}\n", "s.yaml")
    assert validate(SweepSpecSection, document).poll_interval == seconds


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("soon", "'soon' is not a duration"),
        ("0s", "expected greater than or equal to 1"),
        ("2d", "expected less than or equal to 86400"),
        ("true", "expected a number"),
    ],
)
def test_wrong_poll_intervals(written: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        validate(SweepSpecSection, load_yaml_text(f"point: p\npoll_interval: {written}\n", "s.yaml"))
