from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from airflow.plugins_manager import AirflowPlugin

from airflow_megatron.get_provider_info import get_provider_info
from airflow_megatron.links.sweep_results import SweepResultsLink
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.operators.sweep_report import SweepReportOperator
from airflow_megatron.ui.plugin import AirflowMegatronPlugin

if TYPE_CHECKING:
    import pytest


def test_the_plugin_is_one_that_airflow_loads() -> None:
    assert issubclass(AirflowMegatronPlugin, AirflowPlugin)
    AirflowMegatronPlugin.validate()
    (app,) = AirflowMegatronPlugin.fastapi_apps
    (view,) = AirflowMegatronPlugin.external_views
    assert view["href"].strip("/") == app["url_prefix"].strip("/")


def test_the_link_leads_from_either_dag_to_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://host/airflow/")
    for dag_id in ("demo", "demo.point"):
        link = SweepResultsLink().get_link(None, ti_key=SimpleNamespace(dag_id=dag_id))  # type: ignore[arg-type]
        assert link == "https://host/airflow/plugin/megatron-sweeps/megatron/sweeps/demo"


def test_operators_with_the_link_are_registered() -> None:
    for operator in (SlurmSubmitOperator, SlurmWatchOperator, SweepReportOperator):
        assert [link.name for link in operator.operator_extra_links] == ["Sweep results"]
    path = f"{SweepResultsLink.__module__}.{SweepResultsLink.__qualname__}"
    assert path in get_provider_info()["extra-links"]
