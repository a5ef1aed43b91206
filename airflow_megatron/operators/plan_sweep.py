"""Operator that checks, expands and pins a sweep."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.planning.pinned import PinnedSweep, choose_points
from airflow_megatron.planning.plan import check_sweep
from airflow_megatron.spec.cluster_profile import load_cluster
from airflow_megatron.spec.errors import SpecError
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class PlanSweepOperator(BaseOperator):
    """Expand a sweep spec, check it, and pin what the run will do.

    Returns the pinned sweep; pushes the jobs that run once for the sweep under their stages' names.

    :param spec_file: the sweep spec
    :param points: which points; see :func:`airflow_megatron.planning.pinned.choose_points` (templated)
    :param limit: at most this many points (templated)
    :param cluster: cluster profile instead of the spec's own (templated)
    """

    template_fields: Sequence[str] = ("points", "limit", "cluster")
    ui_color = "#f3ecd9"

    def __init__(
        self,
        *,
        spec_file: str,
        points: str = "",
        limit: int | str | None = None,
        cluster: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spec_file = spec_file
        self.points = points
        self.limit = limit
        self.cluster = cluster

    def execute(self, context: Context) -> dict[str, Any]:
        """Check, choose, pin."""
        try:
            text = Path(self.spec_file).read_text(encoding="utf-8")
            sweep = load_sweep_text(text, self.spec_file)
            profile = load_cluster(str(self.cluster or sweep.settings.cluster))
            chosen = choose_points(sweep, str(self.points or ""), int(self.limit or 0) or None)
            plan = check_sweep(sweep, profile, chosen)
        except SpecError as error:
            raise AirflowFailException(str(error)) from None
        except OSError as error:
            raise AirflowFailException(f"{self.spec_file} cannot be read: {error}") from None
        for warning in plan.warnings:
            self.log.warning("%s", warning)
        for job in plan.jobs:
            if not job.point:
                context["ti"].xcom_push(key=job.stage, value=job.to_json())
        pinned = PinnedSweep(self.spec_file, text, profile.name, plan.points, sources=sweep.document.sources)
        self.log.info(
            "%s on %s: %d points, %d jobs", sweep.name, profile.name, len(plan.points), len(plan.jobs)
        )
        for job in plan.jobs:
            waits = ", ".join(f"{item.job} {item.to_plan()['until']}" for item in job.depends_on)
            self.log.info("  %s%s", job.name, f"  after {waits}" if waits else "")
        return dataclasses.replace(pinned, digest=plan.digest).to_json()
