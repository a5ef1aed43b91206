"""Check that jobs need only what a restricted key permits; docs/security.md lists it."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.slurm.submission.provenance import ENVIRONMENTS
from airflow_megatron.spec.layout.run_layout import ARRAYS, JOBS, SECRETS, SUBMITTING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job

_OWN_HIDDEN: Final = frozenset((JOBS, ARRAYS, SUBMITTING, ENVIRONMENTS))
"""Hidden folders that the key permits in paths."""
_SECRET: Final = re.compile(rf"/(?:{re.escape(JOBS)}|{re.escape(ARRAYS)})/.*/{SECRETS}/")


def restricted_key_findings(jobs: Iterable[Job], cluster: ClusterProfile) -> Iterator[Finding]:
    """Yield what needs commands on the login node, or files that the key cannot read or write."""
    if not cluster.restricted:
        return
    for job in jobs:
        yield from _command_findings(job, cluster)
        yield from _path_findings(job, cluster)


def _command_findings(job: Job, cluster: ClusterProfile) -> Iterator[Finding]:
    refusal = f"the key of cluster {cluster.name} is restricted, and runs no command"
    if job.stage_kind.runs_first_on_login_node(job):
        yield Finding(
            "restricted-login-node",
            job,
            ("params", "where"),
            f"{refusal} on the login node",
            "remove where, and give the stage a partition with internet; or fetch by hand on the login node, and set "
            "HF_HOME in the profile",
        )
    if any(event.do == "run" for event in job.events):
        yield Finding(
            "restricted-event", job, ("events",), f"{refusal} of an event", "do: notify, or another action"
        )
    for key, leaf in _leaves(job):
        if leaf.kind == "command":
            yield Finding(
                "restricted-command",
                job,
                (key,),
                f"{refusal} of a condition",
                "let a job write a file below the run root, and wait for it: file: PATH",
            )


def _path_findings(job: Job, cluster: ClusterProfile) -> Iterator[Finding]:
    for key, path in _paths(job):
        if refused := _refused(path, cluster.run_root):
            verb = "write" if key == "RUN_DIR" else "read"
            yield Finding(
                "restricted-path",
                job,
                (key,),
                f"the restricted key of cluster {cluster.name} cannot {verb} {path}: {refused}",
                f"a path below {cluster.run_root.rstrip('/')}/ without .. and without hidden names",
            )
            return


def _paths(job: Job) -> Iterator[tuple[str, str]]:
    """Yield the paths that are read or written over the connection, with the keys of the spec that set them."""
    yield "RUN_DIR", job.run_dir
    if job.log is not None:
        yield "template", posixpath.dirname(job.log_file(1))
        yield "template", job.log_file(1)
    for path in job.outputs:
        yield "outputs", path
    for key, leaf in _leaves(job):
        if leaf.path:
            yield key, leaf.path


def _refused(path: str, run_root: str) -> str:
    """Return why the key refuses a path; empty if it does not."""
    root = run_root.rstrip("/")
    parts = path.split("/")
    if not f"{path.rstrip('/')}/".startswith(f"{root}/") or ".." in parts:
        return f"it is not below {root}"
    own = {*_OWN_HIDDEN, *root.split("/")}
    if hidden := next((part for part in parts if part.startswith(".") and part not in own), None):
        return f"{hidden} is hidden"
    return "it is a secret" if _SECRET.search(path) else ""


def _leaves(job: Job) -> Iterator[tuple[str, Condition]]:
    for key, condition in (("start", job.start), ("cancel", job.cancel), ("finish", job.finish)):
        for leaf in condition.leaves() if condition else ():
            yield key, leaf
    for event in job.events:
        for leaf in event.condition.leaves() if event.condition else ():
            yield "events", leaf
