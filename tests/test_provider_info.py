"""The provider metadata of the package, as Airflow's provider manager reads it."""

from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest
from airflow.providers_manager import ProvidersManager

from airflow_megatron.cli.airflow_command import airflow_commands
from airflow_megatron.get_provider_info import get_provider_info
from airflow_megatron.hooks.connection_options import ConnectionOptions

INFO = get_provider_info()
OF_AIRFLOW = Path(airflow.__file__).parent


def test_it_is_valid_by_airflows_own_schema() -> None:
    schema = json.loads((OF_AIRFLOW / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)
    assert set(INFO) <= set(schema["properties"]), "keys that Airflow does not know"


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers"])
def test_every_module_is_named(kind: str) -> None:
    package = importlib.import_module(f"airflow_megatron.{kind}")
    modules = {f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)}
    assert {module for entry in INFO[kind] for module in entry["python-modules"]} == modules


@pytest.mark.parametrize("kind", ["operators", "sensors", "triggers", "hooks"])
def test_integrations_are_declared(kind: str) -> None:
    declared = {entry["integration-name"] for entry in INFO["integrations"]}
    assert {entry["integration-name"] for entry in INFO[kind]} <= declared


def test_everything_named_exists() -> None:
    paths = [*INFO["notifications"], *INFO["extra-links"], *INFO["cli"]]
    paths += [item["class-name"] for item in INFO["task-decorators"]]
    paths += [item["hook-class-name"] for item in INFO["connection-types"]]
    for path in paths:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


class TestInAirflow:
    @pytest.mark.slow
    def test_the_connection_type_has_a_form_and_a_test_button(self) -> None:
        manager = ProvidersManager()
        hook = manager.hooks["slurm"]
        assert hook is not None
        assert hook.package_name == "airflow-megatron"
        assert hook.connection_testable
        fields = {
            widget.field_name: widget
            for name, widget in manager.connection_form_widgets.items()
            if name.startswith("extra__slurm__")
        }
        assert {"key_file", "host_key", "transport", "control_path"} <= set(fields)
        assert {name for name, widget in fields.items() if widget.is_sensitive} == {
            "private_key",
            "private_key_passphrase",
        }
        assert manager.field_behaviours["slurm"]["relabeling"]["host"] == "Login node"

    def test_ssh_connections_keep_their_own_form(self) -> None:
        hook = ProvidersManager().hooks["ssh"]
        assert hook is not None
        assert hook.package_name == "apache-airflow-providers-ssh"

    def test_the_notifier_and_the_link_are_known(self) -> None:
        manager = ProvidersManager()
        assert set(INFO["notifications"]) <= set(manager.notification)
        assert set(INFO["extra-links"]) <= set(manager.extra_links_class_names)

    def test_the_configuration_section_is_known(self) -> None:
        configs = dict(ProvidersManager().provider_configs)
        assert configs["airflow-megatron"] == INFO["config"]


def test_fields_of_the_form_are_what_the_hook_reads() -> None:
    class Extras(dict[str, Any]):
        """Records the requested keys."""

        def get(self, key: str, default: Any = None) -> Any:
            read_keys.add(key)
            return default

    class Stored:
        host, port, login, password, extra_dejson = "login.example", None, None, None, Extras()

    read_keys: set[str] = set()
    ConnectionOptions.of(Stored(), "alps")  # type: ignore[arg-type]
    assert read_keys - {"passphrase"} == set(INFO["connection-types"][0]["conn-fields"])


def test_the_form_as_it_is_saved_without_a_change_can_be_used() -> None:
    fields = INFO["connection-types"][0]["conn-fields"]

    class Stored:
        host, port, login, password = "login.example", None, None, None
        extra_dejson = {name: field["schema"].get("default") for name, field in fields.items()}  # noqa: RUF012

    class Bare(Stored):
        extra_dejson: dict[str, Any] = {}  # noqa: RUF012

    class Emptied(Stored):
        extra_dejson = dict.fromkeys(fields)

    stored = [ConnectionOptions.of(connection(), "alps") for connection in (Stored, Bare, Emptied)]  # type: ignore[arg-type]
    assert stored[0] == stored[1] == stored[2]


def test_airflow_megatron_is_a_command_of_airflow(capsys: pytest.CaptureFixture[str]) -> None:
    from airflow.cli.cli_parser import get_parser

    (command,) = airflow_commands()
    arguments = get_parser().parse_args([command.name, "plan", "--help"])
    with pytest.raises(SystemExit) as ended:
        arguments.func(arguments)
    assert ended.value.code == 0
    assert "airflow megatron plan" in capsys.readouterr().out
