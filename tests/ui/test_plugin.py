from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, EntryPoints
from types import SimpleNamespace

import pytest
from airflow._shared.plugins_manager import _load_plugins_from_plugin_directory
from airflow.plugins_manager import AirflowPlugin

from airflow_megatron.get_provider_info import get_provider_info
from airflow_megatron.links.sweep_results import SweepResultsLink
from airflow_megatron.operators.slurm_submit import SlurmSubmitOperator
from airflow_megatron.operators.slurm_watch import SlurmWatchOperator
from airflow_megatron.operators.sweep_report import SweepReportOperator
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.ui import registered_plugin
from airflow_megatron.ui.plugin import AirflowMegatronPlugin


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


def test_the_link_leads_to_the_configured_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__MEGATRON__RESULTS_URL", "https://results.example.org/megatron/")
    link = SweepResultsLink().get_link(None, ti_key=SimpleNamespace(dag_id="demo.point"))  # type: ignore[arg-type]
    assert link == "https://results.example.org/megatron/sweeps/demo"


@pytest.mark.parametrize("installed", [True, False])
def test_the_file_registers_the_plugin_only_if_it_is_not_installed(
    installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow shows a second plugin of the same name as an import error."""
    declared = tomllib.loads((project_root() / "pyproject.toml").read_text())["project"]["entry-points"]
    points = [
        EntryPoint(name, value, group) for group, names in declared.items() for name, value in names.items()
    ]
    found = EntryPoints(points if installed else ())
    monkeypatch.setattr(registered_plugin, "entry_points", found.select)
    by_file, errors = _load_plugins_from_plugin_directory(str(project_root() / "plugins"))
    by_package = [entry.load() for entry in found.select(group="airflow.plugins")]
    assert errors == {}
    assert [type(plugin) for plugin in by_file] + by_package == [AirflowMegatronPlugin]


def test_operators_with_the_link_are_registered() -> None:
    for operator in (SlurmSubmitOperator, SlurmWatchOperator, SweepReportOperator):
        assert [link.name for link in operator.operator_extra_links] == ["Sweep results"]
    path = f"{SweepResultsLink.__module__}.{SweepResultsLink.__qualname__}"
    assert path in get_provider_info()["extra-links"]
