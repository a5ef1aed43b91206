from __future__ import annotations

import configparser
import json
from pathlib import Path

import pytest
from distributed.configuration import airflow_cfg, airflow_options, redis_conf
from distributed.engine import Engine
from distributed.layout import SECRETS, Layout, Settings, Size
from distributed.services import service_environment, service_names, services_of
from local_cluster.errors import ClusterError

PYTHON = Path("/venv/bin/python")
PORTS = {"postgres": 20001, "redis": 20002, "api-server": 20003}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "engine", tmp_path / "database")


def settings(**size: int) -> Settings:
    return Settings(Size(**size), PORTS, {name: f"{name}%secret" for name in SECRETS})


def test_table_of_services_follows_the_size() -> None:
    assert service_names(Size(schedulers=1, dag_processors=2, triggerers=1, workers=2)) == [
        *("postgres", "redis", "api-server", "scheduler:1", "dag-processor:1", "dag-processor:2"),
        *("triggerer:1", "worker:1", "worker:2"),
    ]


@pytest.mark.parametrize("size", [{"workers": 0}, {"concurrency": 65}])
def test_size_out_of_range_is_refused(size: dict[str, int]) -> None:
    with pytest.raises(ClusterError, match=r"must be from 1 to 64"):
        Size(**size)


def test_airflow_reads_the_options_as_they_were_given(layout: Layout) -> None:
    options = airflow_options(layout, settings(workers=3, concurrency=4))
    found = configparser.ConfigParser()
    found.read_string(airflow_cfg(options))
    assert {section: dict(found[section]) for section in found.sections()} == options
    assert found["core"]["parallelism"] == "12"
    assert found["celery"]["result_backend"].startswith("db+postgresql+psycopg2://")
    assert ":broker%secret@127.0.0.1:20002/" in found["celery"]["broker_url"]


def test_redis_requires_its_password_and_keeps_its_queue(layout: Layout) -> None:
    lines = redis_conf(layout, settings()).splitlines()
    assert {"bind 127.0.0.1", "port 20002", "requirepass broker%secret", "appendonly yes"} <= set(lines)


def test_no_secret_is_in_a_command_or_an_environment(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributed.services.program", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("distributed.services.as_database_user", lambda: ())
    services = services_of(layout, settings(), PYTHON)
    shown = [word for service in services.values() for word in service.argv]
    shown += service_environment(layout, PYTHON, {}).values()
    assert len(services) == 12
    assert not [word for word in shown if "%secret" in word]


def test_workers_of_one_machine_share_no_file_and_no_name(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distributed.services.program", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("distributed.services.as_database_user", lambda: ())
    services = services_of(layout, settings(workers=2), PYTHON)
    one, two = set(services["worker:1"].argv), set(services["worker:2"].argv)
    assert one - two == {"worker1@%h", f"{layout.directory}/worker-1.pid"}


def test_settings_keep_secrets_and_free_ports(layout: Layout) -> None:
    first = Settings.chosen(Size(), None)
    layout.make_folders()
    layout.save(first)
    second = Settings.chosen(Size(workers=1), layout.saved())
    assert second.secrets == first.secrets
    assert second.ports == first.ports
    assert layout.settings.stat().st_mode & 0o077 == 0


def test_damaged_settings_are_reported(layout: Layout) -> None:
    layout.make_folders()
    layout.settings.write_text(json.dumps({"ports": {}}))
    with pytest.raises(ClusterError, match=r"settings\.json is damaged .* down --purge"):
        layout.saved()


def test_unknown_service_is_refused_with_the_known_ones(layout: Layout) -> None:
    layout.make_folders()
    layout.save(settings(workers=1))
    engine = Engine(layout, PYTHON, print)
    with pytest.raises(ClusterError, match=r"no service worker:2; there are postgres, .*worker:1"):
        engine.kill("worker:2")
    assert set(engine.status().values()) == {None}
