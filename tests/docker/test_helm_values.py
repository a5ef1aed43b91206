"""Values for Airflow's Helm chart: every key is one of the chart's, with a value of its type.

``helm_chart_keys.json`` records the keys of the chart's schema that the values use. To write it for a release of the
chart that ``helm pull --untar`` has brought:

    AIRFLOW_HELM_CHART=FOLDER PYTHONPATH=docker python tests/docker/test_helm_values.py

With that variable the tests check the values against the schema itself, too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml
from airflow.configuration import conf
from distributed.configuration import airflow_options
from distributed.layout import SECRETS, Layout, Settings, Size

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCKER = Path(__file__).resolve().parents[2] / "docker"
TEXT = (DOCKER / "helm" / "values.yaml").read_text()
VALUES: dict[str, Any] = yaml.safe_load(TEXT)
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose" / "compose.yaml").read_text())
RECORD = Path(__file__).with_name("helm_chart_keys.json")
CHART = os.environ.get("AIRFLOW_HELM_CHART", "")
SETTINGS = Settings(Size(), {"postgres": 1, "redis": 2, "api-server": 3}, dict.fromkeys(SECRETS, "secret"))
FREE = "free"
"""What a key is that the site names, and not the chart."""
KINDS = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


class UnknownKeyError(ValueError):
    """A key that the chart does not have."""


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each scalar with its value; elements of lists are ``[]``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, f"{path}[]")
    else:
        yield path, value


def types_in(schema: dict[str, Any], path: str) -> list[str]:
    """Return the types that the chart's schema gives a key, ``[FREE]`` below a section of the site's own keys.

    :raises UnknownKeyError: if the schema does not name the key
    """
    node = schema
    for name in path.replace("[]", ".[]").split("."):
        if reference := node.get("$ref"):
            node = schema["definitions"][reference.rpartition("/")[2]]
        if name == "[]":
            node = node["items"]
        elif name in node.get("properties", {}):
            node = node["properties"][name]
        elif isinstance(node.get("additionalProperties"), dict):
            return [FREE]
        else:
            raise UnknownKeyError(f"the chart does not have the key {path}: {name}")
    kinds = node.get("type", FREE)
    return [kinds] if isinstance(kinds, str) else list(kinds)


def record_of(chart: Path) -> dict[str, Any]:
    """Return the record of a chart: its release, the digest of its schema, and the types of the keys of the values."""
    schema = (chart / "values.schema.json").read_bytes()
    paths = sorted({path for path, _ in leaves(VALUES)})
    return {
        "chart": yaml.safe_load((chart / "Chart.yaml").read_text())["version"],
        "sha256": hashlib.sha256(schema).hexdigest(),
        "keys": {path: types_in(json.loads(schema), path) for path in paths},
    }


def recorded() -> dict[str, Any]:
    """Return the stored record."""
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record


def wrong_leaves(values: dict[str, Any]) -> list[str]:
    """Return the keys that the record does not have, and those whose value has another type."""
    keys = recorded()["keys"]
    return [
        path
        for path, value in leaves(values)
        if path not in keys or not {FREE, KINDS.get(type(value), "null")} & set(keys[path])
    ]


def test_keys_are_those_of_the_chart() -> None:
    assert wrong_leaves(VALUES) == []
    assert {path for path, _ in leaves(VALUES)} == set(recorded()["keys"])


@pytest.mark.parametrize(
    ("text", "changed", "wrong"),
    [
        ("\ntriggerer:", "\ntrigerer:", "trigerer.replicas"),
        ("replicas: 3", "replica: 3", "workers.celery.replica"),
        ("replicas: 3", "replicas: three", "workers.celery.replicas"),
        ("claimName: airflow-megatron-state", "claim: x", "volumes[].persistentVolumeClaim.claim"),
        ("fsGroup: 50000", "fsGroup: x", "securityContexts.pod.fsGroup"),
    ],
)
def test_a_typing_error_is_found(text: str, changed: str, wrong: str) -> None:
    assert text in TEXT
    assert wrong in wrong_leaves(yaml.safe_load(TEXT.replace(text, changed)))


@pytest.mark.skipif(not CHART, reason="AIRFLOW_HELM_CHART names no unpacked chart")
def test_the_schema_of_the_chart_accepts_the_values() -> None:
    schema = json.loads((Path(CHART) / "values.schema.json").read_text())
    jsonschema.validators.validator_for(schema)(schema).validate(VALUES)
    assert record_of(Path(CHART)) == recorded()
    with pytest.raises(UnknownKeyError, match=r"triggerer\.replica: replica"):
        types_in(schema, "triggerer.replica")


def test_the_release_of_the_chart_is_the_checked_one() -> None:
    release = recorded()["chart"]
    assert f"--version {release} " in TEXT
    assert f"--version {release} " in (DOCKER.parent / "docs" / "operations.md").read_text()


def test_options_exist(tmp_path: Path) -> None:
    """The chart accepts any section and option, and Airflow ignores unknown ones."""
    described = conf.configuration_description
    tested = airflow_options(Layout(tmp_path, tmp_path), SETTINGS)
    for section, options in VALUES["config"].items():
        known = {*described.get(section, {"options": ()})["options"], *tested.get(section, ())}
        assert set(options) <= known | ({"worker_concurrency"} if section == "celery" else set()), section


def test_options_are_those_that_are_tested(tmp_path: Path) -> None:
    """Every option that the tested engine sets is set here, by the chart or by one of its secrets."""
    by_the_chart = {
        *("core.executor", "core.execution_api_server_url", "database.sql_alchemy_conn", "celery.broker_url"),
        *("database.sql_alchemy_conn_async", "celery.result_backend", "api.host", "api.port", "api.base_url"),
        *("api.secret_key", "api_auth.jwt_secret", "logging.base_log_folder", "core.parallelism"),
        "scheduler.scheduler_idle_sleep_time",
    }
    for section, options in airflow_options(Layout(tmp_path, tmp_path), SETTINGS).items():
        for name, value in options.items():
            if f"{section}.{name}" in by_the_chart:
                continue
            given = str(VALUES["config"][section][name])
            assert given == value or value.startswith("/"), name


def test_numbers_of_daemons_are_those_that_are_tested() -> None:
    size = Size()
    assert VALUES["scheduler"]["replicas"] == size.schedulers
    assert VALUES["dagProcessor"]["replicas"] == size.dag_processors
    assert VALUES["triggerer"]["replicas"] == size.triggerers
    assert VALUES["workers"]["celery"]["replicas"] == size.workers
    slots = size.workers * VALUES["config"]["celery"]["worker_concurrency"]
    assert VALUES["config"]["core"]["parallelism"] == slots


def test_image_folders_and_user_are_those_of_the_compose_file() -> None:
    service = COMPOSE["services"]["scheduler"]
    image = VALUES["images"]["airflow"]
    assert f"{image['repository'].rpartition('/')[2]}:{image['tag']}" == service["image"]
    environment = {item["name"]: item["value"] for item in VALUES["env"]}
    for name in ("AIRFLOW_MEGATRON_HOME", "AIRFLOW_MEGATRON_LOCAL"):
        assert environment[name] == service["environment"][name]
    assert {mount["mountPath"] for mount in VALUES["volumeMounts"]} >= {
        environment[name] for name in environment if "MEGATRON" in name
    }
    assert {mount["name"] for mount in VALUES["volumeMounts"]} == {
        volume["name"] for volume in VALUES["volumes"]
    }
    assert f"{VALUES['uid']}:{VALUES['gid']}" == service["user"]
    assert VALUES["securityContexts"]["pod"]["runAsUser"] == VALUES["uid"]
    assert service["image"].partition(":")[2] == image["tag"]
    lock = (DOCKER / "distributed" / "requirements.lock").read_text()
    assert f"\napache-airflow=={VALUES['airflowVersion']} " in lock


def test_no_secret_is_written_here() -> None:
    for path, value in leaves(VALUES):
        assert "://" not in str(value) or re.match(r"(s3|https)://", value), path
        assert not re.search(
            r"(?i)password$|privatekey|fernetkey$|(api|webserver)secretkey$|jwtsecret$", path
        ), path
    volume = next(one for one in VALUES["volumes"] if "secret" in one)
    assert volume["secret"]["defaultMode"] == 0o440


def test_the_image_runs_commands_as_the_chart_gives_them() -> None:
    """The chart's arguments are ``bash -c 'exec airflow …'``; its probes run ``/entrypoint airflow …``."""
    lines = (DOCKER / "compose" / "Containerfile").read_text()
    assert 'ENTRYPOINT ["/usr/bin/tini", "--", "/entrypoint"]' in lines
    assert 'exec "$@"\\n\' > /entrypoint' in lines
    for name, service in COMPOSE["services"].items():
        if service["image"].startswith("airflow-megatron"):
            assert service["command"][0] == "airflow", name


if __name__ == "__main__":
    RECORD.write_text(json.dumps(record_of(Path(CHART)), indent=1) + "\n")
