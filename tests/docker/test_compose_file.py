"""The compose file as a whole: its guarantees hold for every service."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from distributed.configuration import airflow_options
from distributed.layout import SECRETS, Layout, Settings, Size

FOLDER = Path(__file__).resolve().parents[2] / "docker" / "compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SECRET_OPTION = re.compile(r"PASSWORD$|SECRET|FERNET|SQL_ALCHEMY_CONN|BROKER_URL|RESULT_BACKEND")


@pytest.mark.parametrize("name", SERVICES)
def test_service_runs_without_root_and_privileges(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].split(":")[0] not in ("root", "0")
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


@pytest.mark.parametrize("name", SERVICES)
def test_image_is_pinned(name: str) -> None:
    tag = SERVICES[name]["image"].rpartition(":")[2]
    assert re.match(r"\d+\.\d+\.?\d*", tag), tag


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_service_has_a_health_check_and_is_restarted(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]
    assert SERVICES[name]["restart"] == "always"


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_come_from_files_alone(name: str) -> None:
    service = SERVICES[name]
    for option, value in service.get("environment", {}).items():
        if (
            SECRET_OPTION.search(option.removesuffix("_CMD").removesuffix("_FILE"))
            and "PASSWORDS_FILE" not in option
        ):
            read = re.fullmatch(r"(?:cat )?/run/secrets/(\w+)", value)
            assert read, f"{option}: {value}"
            assert read[1] in service["secrets"]
    assert set(service["secrets"]) <= set(COMPOSE["secrets"])


def test_numbers_of_daemons_are_those_that_are_tested() -> None:
    size = Size()
    wanted = {
        "scheduler": size.schedulers,
        "dag-processor": size.dag_processors,
        "triggerer": size.triggerers,
        "worker": size.workers,
    }
    assert {name: SERVICES[name]["deploy"]["replicas"] for name in wanted} == wanted


def test_options_are_those_that_are_tested(tmp_path: Path) -> None:
    """Every option that the tested engine sets is set here; addresses, ports and folders differ."""
    ports = {"postgres": 1, "redis": 2, "api-server": 3}
    layout = Layout(tmp_path, tmp_path)
    tested = airflow_options(layout, Settings(Size(), ports, dict.fromkeys(SECRETS, "secret")))
    environment = SERVICES["scheduler"]["environment"]
    left_out = {"AIRFLOW__CORE__PARALLELISM", "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME"}
    for section, options in tested.items():
        for name, value in options.items():
            variable = f"AIRFLOW__{section}__{name}".upper()
            if (section == "api" and name in ("host", "port", "base_url")) or variable in left_out:
                continue
            assert variable in environment or f"{variable}_CMD" in environment, variable
            if variable in environment and not value.startswith(("/", "http")):
                assert environment[variable] == value


def test_secrets_are_made_once(tmp_path: Path) -> None:
    make_secrets = runpy.run_path(str(FOLDER / "make_secrets.py"))["make_secrets"]
    folder = tmp_path / "secrets"
    assert set(make_secrets(folder)) == set(COMPOSE["secrets"])
    before = {file.name: file.read_text() for file in folder.iterdir()}
    (folder / "broker_url").unlink()
    assert make_secrets(folder) == ["broker_url"]
    assert {file.name: file.read_text() for file in folder.iterdir()} == before
    assert folder.stat().st_mode & 0o077 == 0
    password = before["postgres_password"]
    for name in ("sql_alchemy_conn", "sql_alchemy_conn_async", "result_backend"):
        assert f":{password}@postgres:5432/airflow" in before[name]


def test_image_ends_as_another_user_than_root() -> None:
    lines = (FOLDER / "Containerfile").read_text().splitlines()
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users[-1] == SERVICES["scheduler"]["user"]
    assert re.search(r":\d+\.\d+", next(line for line in lines if line.startswith("ARG BASE=")))
