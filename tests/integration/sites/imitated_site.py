"""A local cluster with the limits of a site: the rules of the site's profile configure Slurm and sshd.

The rules define the limits; ``imitations.yaml`` adds properties without a rule (features of nodes, login limits).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from airflow_megatron.spec.documents.quantities import parse_duration, slurm_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.schema import SiteRuleSection

_ADDITIONS: Final = Path(__file__).with_name("imitations.yaml")
WITHOUT_NETWORK: Final = "exec unshare --net bash -c 'ip link set lo up; exec \"$@\"' bash"
"""Words of bash that start a command with the node's own loopback alone; only root can."""
_UNNAMED: Final = "nodes"
"""Partition of a site whose profile names none ("default" has a meaning in slurm.conf)."""
_FIELDS: Final = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "constraint": "features",
    "time": "time_limit",
}
"""Key of ``slurm`` → field of job_desc in job_submit.lua."""
_REQUESTS: Final = {
    "mem": ("pn_min_memory",),
    "gres": ("tres_per_node",),
    "gpus-per-node": ("tres_per_node",),
    "gpus-per-task": ("tres_per_task",),
    "nodelist": ("req_nodes",),
}
"""sbatch option → fields of job_desc that it sets."""


def description(cluster: ClusterProfile) -> dict[str, Any]:
    """Return the description of a profile's site for ``cluster up --imitate``."""
    additions: dict[str, Any] = yaml.safe_load(_ADDITIONS.read_text()).get(cluster.name, {})
    rules = cluster.rules
    named = [
        cluster.slurm.partition,
        *cluster.partitions,
        *(name for rule in rules for name in rule.partitions),
    ]
    partitions = list(dict.fromkeys(name for name in named if name)) or [_UNNAMED]
    qualities = [cluster.slurm.qos, *(name for rule in rules for name in rule.qos)]
    sizes = [rule.max_nodes or 0 for rule in rules] + [rule.from_nodes or 0 for rule in rules]
    sizes += [rule.to_nodes or 0 for rule in rules] + [rule.min_nodes or 0 for rule in rules]
    queued = queued_of_quality(rules)
    refused = {name for rule in rules if not rule.advice for name in rule.refused_options}
    return {
        "site": cluster.name,
        "partitions": {
            name: _partition_options(name, rules, default=number == 0)
            for number, name in enumerate(partitions)
        },
        "absent_nodes": max(sizes, default=0) + 1,
        "qualities": sorted({*(name for name in qualities if name), *queued}),
        "queued_of_quality": queued,
        "queued": min(
            (rule.max_jobs for rule in rules if rule.max_jobs and not _names_jobs(rule)), default=0
        ),
        "gpu_requests": not {"gres", "gpus-per-node"} & refused,
        "filter": submission_filter(rules),
        **additions,
    }


def has_internet(cluster: ClusterProfile) -> bool:
    """Return whether the site's nodes have internet; otherwise its profile sets Hugging Face's offline mode."""
    return not cluster.env.get("HF_HUB_OFFLINE")


def container_words(cluster: ClusterProfile) -> str:
    """Return the command prefix of a stand-in for a container runtime, with the network access of the site's nodes."""
    return "exec" if has_internet(cluster) else WITHOUT_NETWORK


def write_description(cluster: ClusterProfile, folder: Path) -> Path:
    path = folder / f"{cluster.name}.json"
    path.write_text(json.dumps(description(cluster)))
    return path


def described_size(cluster: ClusterProfile) -> list[str]:
    """Return the options of ``cluster up`` for two nodes that are large enough for the requests of the profile."""
    most = max((one.gpus_per_node or 0 for one in cluster.partitions.values()), default=0)
    gpus = most or cluster.slurm.gpus_per_node or 1
    return ["--nodes", "2", "--gpus-per-node", str(gpus), "--cpus-per-node", "288"]


def is_of_partition(rule: SiteRuleSection) -> bool:
    """Return whether slurm.conf can express the rule: it limits time or nodes of all jobs in some partitions."""
    limits = rule.max_time or rule.min_nodes or rule.max_nodes
    return bool(rule.partitions and limits) and not (rule.qos or rule.from_nodes or rule.to_nodes)


def queued_of_quality(rules: list[SiteRuleSection]) -> dict[str, int]:
    """Return the limits on queued jobs by quality of service, including those of partitions with such a limit."""
    return {
        name: rule.max_jobs
        for rule in rules
        if rule.max_jobs is not None
        for name in (*rule.qos, *map(_quality_of, rule.partitions))
    }


def _quality_of(partition: str) -> str:
    return f"of-{partition}"


def _names_jobs(rule: SiteRuleSection) -> bool:
    return bool(rule.qos or rule.partitions)


def _partition_options(name: str, rules: list[SiteRuleSection], *, default: bool) -> str:
    options: dict[str, str] = {"Default": "YES" if default else "NO", "DefaultTime": "00:10:00"}
    for rule in rules:
        if is_of_partition(rule) and name in rule.partitions:
            if rule.max_time is not None:
                options["MaxTime"] = slurm_time(parse_duration(rule.max_time))
            if rule.max_nodes is not None:
                options["MaxNodes"] = str(rule.max_nodes)
            if rule.min_nodes is not None:
                options["MinNodes"] = str(rule.min_nodes)
        if rule.max_jobs is not None and name in rule.partitions:
            options["QOS"] = _quality_of(name)
        if rule.whole_node_gpus is not None and (not rule.partitions or name in rule.partitions):
            options["OverSubscribe"] = "EXCLUSIVE"
    return " ".join(f"{key}={value}" for key, value in options.items())


def submission_filter(rules: list[SiteRuleSection]) -> str:
    """Return job_submit.lua, which applies the rules that slurm.conf cannot express."""
    checks = [check for rule in rules if not rule.advice for check in _checks(rule)]
    return "\n".join(
        [
            "local function given(value) return value ~= nil and value ~= '' and value ~= slurm.NO_VAL",
            "    and value ~= slurm.NO_VAL64 end",
            "local function one_of(value, list)",
            "    for _, name in ipairs(list) do if value == name then return true end end",
            "    return false",
            "end",
            "function slurm_job_submit(job, partitions, user)",
            "    local nodes = given(job.min_nodes) and job.min_nodes or 1",
            "    local minutes = given(job.time_limit) and job.time_limit or 0",
            "    local answer = slurm.SUCCESS",
            "    local function refuse(text) slurm.log_user('%s', text); answer = slurm.ERROR end",
            *checks,
            "    return answer",
            "end",
            "function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end",
            "return slurm.SUCCESS",
            "",
        ]
    )


def _checks(rule: SiteRuleSection) -> Iterator[str]:
    about = [f"nodes >= {rule.from_nodes or 1}"]
    if rule.to_nodes is not None:
        about.append(f"nodes <= {rule.to_nodes}")
    if rule.partitions:
        about.append(f"one_of(job.partition, {_list(rule.partitions)})")
    if rule.qos:
        about.append(f"one_of(job.qos, {_list(rule.qos)})")
    broken = [f"not given(job.{_FIELDS[key]})" for key in rule.required]
    broken += [f"given(job.{name})" for option in rule.refused_options for name in _REQUESTS[option]]
    if rule.max_node_hours is not None:
        broken.append(f"nodes * minutes > {rule.max_node_hours * 60}")
    if not is_of_partition(rule):
        if rule.max_time is not None:
            broken.append(f"minutes > {parse_duration(rule.max_time) // 60}")
        if rule.max_nodes is not None:
            broken.append(f"nodes > {rule.max_nodes}")
        if rule.min_nodes is not None:
            broken.append(f"nodes < {rule.min_nodes}")
    if broken:
        yield f"    if {' and '.join(about)} and ({' or '.join(broken)}) then refuse({_text(rule.rule)}) end"


def _list(names: list[str]) -> str:
    return "{" + ", ".join(map(_text, names)) + "}"


def _text(value: str) -> str:
    """Return a Lua string literal; JSON's escapes of plain ASCII are also valid in Lua."""
    return json.dumps(value.encode("ascii", "replace").decode())
