"""Check that jobs follow the documented rules of the site, which its profile lists with their sources."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Final

from airflow_megatron.checks.findings import Finding
from airflow_megatron.requirements.queue_estimates import longest_chain, longest_time, most_jobs_at_once
from airflow_megatron.slurm.submission.sbatch_options import (
    directive_options,
    read_options,
    split_directive,
    wrong_long_name,
)
from airflow_megatron.spec.documents.quantities import counted, parse_duration, slurm_time
from airflow_megatron.spec.native.profile_places import ProfilePlaces

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import SiteRuleSection
    from airflow_megatron.spec.model.sweep import Sweep

_DAY_S: Final = 86_400
_FIELDS: Final = ("mem", "constraint", "reservation", "exclude", "account", "qos")
"""Keys of ``slurm`` that become the sbatch option of the same name."""
_GPU_OPTIONS: Final = frozenset(("gres", "gpus", "gpus-per-node"))
"""sbatch options that replace the GPU request of the profile."""


def site_rule_findings(jobs: Sequence[Job], cluster: ClusterProfile) -> Iterator[Finding]:
    """Yield the jobs that violate a rule of ``cluster.rules``; for an unverified rule as warnings."""
    if not cluster.rules:
        return
    for job in jobs:
        given = _given_options(job)
        found = [
            [
                finding
                for rule in cluster.rules
                if _is_about(rule, job, partition)
                for finding in (*_size_findings(rule, job), *_option_findings(rule, job, cluster, given))
            ]
            for partition in (job.slurm.partition or "").split(",")
        ]
        # Slurm uses any of several partitions that can run the job
        yield from min(found, key=_weight)


def queue_rule_problems(
    sweep: Sweep, jobs: Sequence[Job], points: int, cluster: ClusterProfile
) -> list[Problem]:
    """Return warnings about rules that limit a user's jobs in the queue, or what runs, if the sweep can exceed them.

    :param jobs: all jobs of the sweep
    :param points: the number of points that they belong to
    """
    warnings = []
    for rule in filter(counts_jobs, cluster.rules):
        about = [job for job in jobs if _can_be_about(rule, job)]
        most = min(len(about), most_jobs_at_once(sweep.tree, points, sweep.settings))
        most = min(most, sweep.settings.max_jobs or most)
        nodes = sum(sorted((job.slurm.node_count for job in about), reverse=True)[:most])
        due, waits = (
            f"up to {counted(most, 'job')} can be due at once",
            "no change is needed: the others start as these end",
        )
        if rule.max_jobs is not None and most > rule.max_jobs:
            hint = (
                f"max_jobs: {rule.max_jobs} in the spec keeps the others waiting, or another partition or QOS"
            )
            warnings.append((due, rule, hint))
        if rule.max_running is not None and most > rule.max_running:
            warnings.append((f"{due}, of which {rule.max_running} run", rule, waits))
        if rule.max_running_nodes is not None and nodes > rule.max_running_nodes:
            running = f"{due}, with {counted(nodes, 'node')}, of which {rule.max_running_nodes} run jobs"
            warnings.append((running, rule, waits))
    return [
        sweep.document.problem(
            ("max_jobs",), f"{message}; the site's rule: {rule.rule} ({_origin(rule)})", hint
        )
        for message, rule, hint in warnings
    ]


def counts_jobs(rule: SiteRuleSection) -> bool:
    """Return whether a rule limits how many jobs a user has in the queue, or how much of them runs."""
    return any(limit is not None for limit in (rule.max_jobs, rule.max_running, rule.max_running_nodes))


def run_root_problems(sweep: Sweep, cluster: ClusterProfile) -> tuple[list[Problem], list[Problem]]:
    """Return errors and warnings about rules that a run root on a file system of this kind violates."""
    errors: list[Problem] = []
    warnings: list[Problem] = []
    run_root = f"{posixpath.normpath(cluster.run_root)}/"
    for rule in cluster.rules:
        for folder in rule.no_run_root:
            if run_root.startswith(f"{posixpath.normpath(folder)}/"):
                message = (
                    f"run_root of cluster {cluster.name} is {cluster.run_root}; the site's rule: {rule.rule} "
                    f"({_origin(rule)})"
                )
                hint = f"a run_root outside of {folder} in the profile"
                found = warnings if _only_warns(rule) else errors
                found.append(sweep.document.problem(("cluster",), message, hint))
    return errors, warnings


def refused_option_problems(cluster: ClusterProfile) -> list[Problem]:
    """Return the names in ``refused_options`` of a profile's rules that no option has, so that they never match."""
    places = ProfilePlaces(cluster)
    return [
        places.problem(("rules", number, "refused_options", index), f"refused_options: {message}", hint)
        for number, rule in enumerate(cluster.rules)
        for index, name in enumerate(rule.refused_options)
        for message, hint in (wrong_long_name(name),)
        if message
    ]


def chain_before_purge(jobs: Sequence[Job], cluster: ClusterProfile) -> int:
    """Return :func:`.longest_chain` for :func:`purge_problems`; 0 without work for a site that deletes no files."""
    return longest_chain(jobs) if cluster.storage is not None and cluster.storage.purge_after else 0


def purge_problems(sweep: Sweep, chain: int, points: int, cluster: ClusterProfile) -> list[Problem]:
    """Return a warning if the site can delete files of the sweep before the sweep ends.

    :param chain: the longest time of the jobs of one point (:func:`chain_before_purge`)
    :param points: the number of points
    """
    storage = cluster.storage
    if storage is None or storage.purge_after is None:
        return []
    kept, needed = parse_duration(storage.purge_after), longest_time(chain, points, sweep.settings)
    if needed <= kept:
        return []
    origin = f" ({storage.source}, read {storage.read})" if storage.source else ""
    message = (
        f"the jobs can take {needed / _DAY_S:.0f} days one after another (walltime of one attempt each,"
        f" {counted(sweep.settings.max_active_points, 'point')} at a time); cluster {cluster.name} "
        "deletes files without access"
        f" for {kept / _DAY_S:g} days{origin}"
    )
    hint = "raise max_active_points, split the sweep, or write a run_root in the profile where files are kept"
    return [sweep.document.problem(("max_active_points",), message, hint)]


def _can_be_about(rule: SiteRuleSection, job: Job) -> bool:
    return any(_is_about(rule, job, partition) for partition in (job.slurm.partition or "").split(","))


def _weight(findings: Sequence[Finding]) -> tuple[int, int]:
    """Return the number of errors and of findings."""
    return sum(not finding.warning for finding in findings), len(findings)


def _is_about(rule: SiteRuleSection, job: Job, partition: str) -> bool:
    nodes = job.slurm.node_count
    if rule.partitions and partition not in rule.partitions:
        return False
    if job.slurm.qos in rule.except_qos or (rule.qos and job.slurm.qos not in rule.qos):
        return False
    return (rule.from_nodes or 1) <= nodes <= (rule.to_nodes or nodes)


def _finding(
    rule: SiteRuleSection, job: Job, key: str, message: str, hint: str, *, warning: bool = False
) -> Finding:
    return Finding(
        f"site rule {rule.rule}",
        job,
        ("slurm", key),
        f"{message}; the site's rule: {rule.rule} ({_origin(rule)})",
        hint,
        warning=warning or _only_warns(rule),
    )


def _only_warns(rule: SiteRuleSection) -> bool:
    return rule.advice or not rule.verified


def _origin(rule: SiteRuleSection) -> str:
    return f"{rule.source}, read {rule.read}{'' if rule.verified else ', unverified'}"


def _size_findings(rule: SiteRuleSection, job: Job) -> Iterator[Finding]:
    nodes, seconds, gpus = job.slurm.node_count, job.slurm.time, job.slurm.gpus
    if rule.min_nodes is not None and nodes < rule.min_nodes:
        hint = f"request at least {counted(rule.min_nodes, 'node')}, or use another partition"
        yield _finding(rule, job, "nodes", f"requests {counted(nodes, 'node')}", hint)
    if rule.max_nodes is not None and nodes > rule.max_nodes:
        hint = f"request at most {counted(rule.max_nodes, 'node')}, or use another partition"
        yield _finding(rule, job, "nodes", f"requests {counted(nodes, 'node')}", hint)
    if rule.max_running_nodes is not None and nodes > rule.max_running_nodes:
        hint = f"request at most {counted(rule.max_running_nodes, 'node')}: the job would never start"
        yield _finding(rule, job, "nodes", f"requests {counted(nodes, 'node')}", hint)
    if rule.whole_node_gpus is not None and 0 < gpus < rule.whole_node_gpus:
        hint = f"gpus_per_node: {rule.whole_node_gpus}, or a partition that shares nodes"
        yield _finding(
            rule, job, "gpus_per_node", f"uses {counted(gpus, 'GPU')} of a node", hint, warning=True
        )
    if seconds is None:
        return
    longest = None if rule.max_time is None else parse_duration(rule.max_time)
    if longest is not None and seconds > longest:
        hint = f'time: "{slurm_time(longest)}"; a longer training continues in further attempts'
        yield _finding(rule, job, "time", f"requests {slurm_time(seconds)} on {counted(nodes, 'node')}", hint)
    if rule.max_node_hours is not None and nodes * seconds > rule.max_node_hours * 3600:
        most = slurm_time(int(rule.max_node_hours * 3600 / nodes))
        asked = f"requests {nodes * seconds / 3600:g} node-hours"
        yield _finding(rule, job, "time", asked, f'time: "{most}" on {counted(nodes, "node")}')


def _option_findings(
    rule: SiteRuleSection, job: Job, cluster: ClusterProfile, given: frozenset[str]
) -> Iterator[Finding]:
    for key in rule.required:
        if getattr(job.slurm, key) is None and key not in given:
            hint = f"add slurm: {{{key}: …}} to the spec or the profile"
            yield _finding(rule, job, key, f"has no {key}", hint)
    for name in rule.refused_options:
        field = name if name in _FIELDS and getattr(job.slurm, name) is not None else None
        if name in given:
            yield _finding(rule, job, "options", f"gives sbatch --{name}", f"remove --{name}")
        elif field is not None:
            yield _finding(rule, job, field, f"gives sbatch --{name}", f"remove slurm.{field}")
        elif name == _gpu_request(job, cluster, given):
            hint = "change gpu_option in the cluster profile"
            yield _finding(rule, job, "gpus_per_node", f"gives sbatch --{name}", hint)


def _gpu_request(job: Job, cluster: ClusterProfile, given: frozenset[str]) -> str | None:
    """Return the option with which the rendered script requests GPUs because of the profile."""
    if job.script is not None or not job.slurm.gpus or given & _GPU_OPTIONS:
        return None
    return None if cluster.gpu_option == "none" else cluster.gpu_option


def _given_options(job: Job) -> frozenset[str]:
    """Return the long names of the sbatch options in the job's ``options``."""
    words = [word for option in job.slurm.options for word in split_directive(option)]
    if job.script is not None:
        words = [*job.slurm.options, *directive_options(job.script)]
    return frozenset(
        option.meant[0] if len(option.meant) == 1 else option.words[0].lstrip("-").partition("=")[0]
        for option in read_options(words)
    )
