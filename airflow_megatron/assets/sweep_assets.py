"""The assets of a sweep: one alias for each stage, whose assets are its points, and one for the report.

DAG("publish", schedule=stage_alias("quickstart", "pretrain"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import Asset, AssetAlias

from airflow_megatron.spec.model.dag_names import point_dag_id

if TYPE_CHECKING:
    from airflow.sdk import Context

GROUP: Final = "megatron"


def stage_alias(sweep: str, stage: str) -> AssetAlias:
    """Return the asset alias that is updated whenever a stage of a sweep has finished at a point.

    The point's own asset, ``megatron://<sweep>/<stage>/<point>``, is attached at run time. That of a stage that runs
    once for the sweep is ``megatron://<sweep>/<stage>``, or one for each point if the sweep names several clusters. The
    event's ``extra`` holds ``sweep``, ``stage``, ``point``, ``kind``, ``run_dir``, ``outputs``, ``job_id``, ``attempt``
    and, of a training, the ``iteration`` of its last checkpoint.

    :param stage: as in the names of tasks: ``pretrain``, ``cooldown_100M.convert``
    """
    return AssetAlias(f"megatron://{sweep}/{stage}", group=GROUP)


def report_alias(sweep: str) -> AssetAlias:
    """Return the alias for each written report of a sweep; the ``extra`` has ``sweep`` and ``files``."""
    return AssetAlias(f"megatron://{sweep}", group=GROUP)


def announced_asset(alias: str, point: str = "") -> Asset:
    """Return the asset that a task attaches to an alias.

    :param alias: name of the alias
    :param point: name of the point; empty for a task of the whole sweep
    """
    name = f"{alias}/{point}" if point else alias
    return Asset(name, uri=name, group=GROUP)


def announce_stage(context: Context, result: Any = None) -> None:
    """Announce that a stage has finished at a point; the ``post_execute`` of a task that watches its job.

    A job that an earlier run has finished is skipped, and nothing is new.

    :param result: the verdict that the task returns
    """
    if not isinstance(result, Mapping) or result.get("outcome") != "finished" or result.get("passed_over"):
        return
    task: Any = context["task"]
    job: Mapping[str, Any] = task.job
    alias = stage_alias(job["sweep"], job["stage"])
    point = job["point"]
    if not point and task.dag_id == point_dag_id(job["sweep"]):
        # of several clusters, every point watches the shared stage of its cluster
        point = (context["dag_run"].conf or {}).get("point") or context["run_id"]
    facts = {key: job[key] for key in ("sweep", "stage", "point", "kind", "run_dir")}
    facts |= {key: result.get(key) for key in ("job_id", "attempt", "iteration")}
    facts["outputs"] = list(job.get("outputs", ()))
    context["outlet_events"][alias].add(announced_asset(alias.name, point), extra=facts)


def announce_report(context: Context, result: Any = None) -> None:
    """Announce that a sweep's report was written; the ``post_execute`` of the task that writes it.

    :param result: its files
    """
    task: Any = context["task"]
    sweep = task.pinned["sweep"]
    alias = report_alias(sweep)
    facts: dict[str, Any] = {"sweep": sweep, "files": [str(path) for path in result or ()]}
    context["outlet_events"][alias].add(announced_asset(alias.name), extra=facts)
