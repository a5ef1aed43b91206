"""The DAGs of a sweep with several clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow.sdk import DAG

SPEC = """\
name: spread
cluster: {cluster}
point: "p{{{{ x }}}}"
sweep: {{x: [1, 2]}}
stages:
  data: {{kind: command, scope: sweep, command: [make], outputs: [data]}}
  work: {{kind: command, parent: data, command: [work]}}
"""


def dags(cluster: str) -> tuple[DAG, DAG]:
    sweep, point = build_dags(SweepOutline.of(load_sweep_text(SPEC.format(cluster=cluster), "spread.yaml")))
    return sweep, point


@pytest.mark.parametrize("cluster", ["local", "[local]"])
def test_one_cluster_is_the_parameters_value(cluster: str) -> None:
    for dag in dags(cluster):
        assert dag.params["cluster"] == "local"


def test_with_several_clusters_the_parameter_is_empty() -> None:
    for dag in dags("[local, example-slurm]"):
        assert dag.params["cluster"] is None
        dag.params["cluster"] = "local"
        dag.params.validate()


def test_shared_stages_run_in_the_runs_of_the_points() -> None:
    one, several = dags("local")[0], dags("[local, example-slurm]")[0]
    shared = {"data.submit", "data.watch", "cancel_left"}
    assert set(one.task_ids) - set(several.task_ids) == shared
    assert several.get_task("launch").upstream_task_ids == {"plan"}


def test_stopping_one_point_leaves_the_shared_stage_to_the_others() -> None:
    one, several = dags("local")[1], dags("[local, example-slurm]")[1]
    assert set(one.task_ids) == set(several.task_ids)
    assert one.get_task("data.watch").cancel_on_kill
    assert not several.get_task("data.watch").cancel_on_kill
    assert several.get_task("work.watch").cancel_on_kill
    assert one.get_task("cancel_left").stages == ["data", "work"]
    assert several.get_task("cancel_left").stages == ["work"]
