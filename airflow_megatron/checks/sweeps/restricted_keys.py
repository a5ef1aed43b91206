"""Check that jobs need nothing that a restricted key cannot do; docs/security.md lists what it can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job


def restricted_key_findings(jobs: Iterable[Job], cluster: ClusterProfile) -> Iterator[Finding]:
    """Yield conditions and events that need commands on the login node, or files outside of the run root."""
    if not cluster.restricted:
        return
    root = cluster.run_root.rstrip("/") + "/"
    for job in jobs:
        if any(event.do == "run" for event in job.events):
            yield Finding(
                "restricted-event",
                job,
                ("events",),
                f"the key of cluster {cluster.name} is restricted, and runs no command of an event",
                "do: notify, or another action",
            )
        for key, leaf in _leaves(job):
            if leaf.kind == "command":
                yield Finding(
                    "restricted-command",
                    job,
                    (key,),
                    f"the key of cluster {cluster.name} is restricted, and runs no command of a condition",
                    "let a job write a file below the run root, and wait for it: file: PATH",
                )
            elif leaf.kind in ("file", "log") and not leaf.path.startswith(root):
                yield Finding(
                    "restricted-path",
                    job,
                    (key,),
                    f"the restricted key of cluster {cluster.name} cannot read {leaf.path}",
                    f"a path below {root}",
                )


def _leaves(job: Job) -> Iterator[tuple[str, Condition]]:
    for key, condition in (("start", job.start), ("cancel", job.cancel), ("finish", job.finish)):
        for leaf in condition.leaves() if condition else ():
            yield key, leaf
    for event in job.events:
        for leaf in event.condition.leaves() if event.condition else ():
            yield "events", leaf
