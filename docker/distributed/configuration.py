"""Configuration files of Airflow and Redis, rendered from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from distributed.layout import Layout, Settings

HOST: Final = "127.0.0.1"
USER: Final = "airflow"
DATABASE: Final = "airflow"


def airflow_options(layout: Layout, settings: Settings) -> dict[str, dict[str, str]]:
    """Return Airflow's options: section → name → value."""
    database = f"{USER}:{settings.secrets['database']}@{HOST}:{settings.ports['postgres']}/{DATABASE}"
    api = f"http://localhost:{settings.ports['api-server']}"
    return {
        "core": {
            "executor": "CeleryExecutor",
            "parallelism": str(settings.size.workers * settings.size.concurrency),
            "load_examples": "False",
            "execution_api_server_url": f"{api}/execution/",
            "simple_auth_manager_passwords_file": str(layout.passwords),
        },
        "database": {
            # SQLAlchemy 2.1 maps postgresql:// to psycopg 3, which the providers do not use
            "sql_alchemy_conn": f"postgresql+psycopg2://{database}",
            "sql_alchemy_conn_async": f"postgresql+asyncpg://{database}",
        },
        "celery": {
            "broker_url": f"redis://:{settings.secrets['broker']}@{HOST}:{settings.ports['redis']}/0",
            "result_backend": f"db+postgresql+psycopg2://{database}",
            "worker_prefetch_multiplier": "1",
        },
        "api": {
            "host": HOST,
            "port": str(settings.ports["api-server"]),
            "base_url": api,
            "secret_key": settings.secrets["session"],
        },
        "api_auth": {"jwt_secret": settings.secrets["jwt"]},
        # copies of bundles from git; Airflow's default is one folder for all engines of a machine
        "dag_processor": {"dag_bundle_storage_path": str(layout.home / "bundles")},
        "triggerer": {"capacity": "5000"},
        "scheduler": {
            "scheduler_idle_sleep_time": "0.5",
            # tasks of a killed worker or broker are queued again after this time; the default is 10 minutes
            "task_queued_timeout": "120",
            # that is no reason to fail them: two schedulers queue more tasks than the workers have slots
            "num_stuck_in_queued_retries": "1000",
        },
        "logging": {"base_log_folder": str(layout.home / "logs")},
    }


def airflow_cfg(options: Mapping[str, Mapping[str, str]]) -> str:
    """Return the text of ``airflow.cfg``."""
    lines: list[str] = []
    for section, values in options.items():
        lines += [
            f"[{section}]",
            *(f"{name} = {value.replace('%', '%%')}" for name, value in values.items()),
            "",
        ]
    return "\n".join(lines)


def redis_conf(layout: Layout, settings: Settings) -> str:
    """Return the text of ``redis.conf``: on the loopback interface, with a password, and each command on disk."""
    return "\n".join(
        [
            f"bind {HOST}",
            f"port {settings.ports['redis']}",
            f"requirepass {settings.secrets['broker']}",
            f'dir "{layout.directory}"',
            "appendonly yes",
            'save ""',
            "daemonize no",
            "",
        ]
    )
