"""Profiles of sites, and resources at and beyond the limit of each of their rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checked_chain import TRUNK

from airflow_megatron.plan.sweep_plan import Plan, check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.quantities import parse_duration
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.model.cluster_profile import ClusterProfile, load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.schema import SiteRuleSection

VARIABLES = {
    "SLURM_ACCOUNT": "project_1",
    "SLURM_QOS": "acc_1",
    "OUTPUT_DIR": "/scratch/project_1",
    "CONTAINER_CACHE_DIR": "/scratch/images",
    "HF_HOME": "/scratch/hf",
}
HEAD = TRUNK[: TRUNK.index("slurm:")]
_REQUESTS = {"gres": "gpu:1", "gpus-per-task": "1", "mem": "1G", "nodelist": "n1"}
STAGE = """\
sweep: {lr: [1e-3]}
stages:
  prepare: {kind: command, scope: sweep, command: ["true"]}
"""
POINT_STAGE = """\
stages:
  work: {kind: command, command: ["true"]}
"""


def profile(site: str) -> ClusterProfile:
    return load_cluster(site, shipped("sbatch") / "sites")


def planned(cluster: ClusterProfile, slurm: dict[str, Any], stages: str = STAGE) -> Plan:
    text = f"{HEAD}slurm: {slurm!r}\n{stages}".replace("None", "null")
    return check_sweep(load_sweep_text(text, "s.yaml"), cluster)


def reported(cluster: ClusterProfile, slurm: dict[str, Any], jobs: int = 1) -> tuple[str, str]:
    """Return the texts of the errors and of the warnings of a sweep of some jobs that can be due at once."""
    stages = f"max_active_points: {jobs}\nsweep: {{lr: {list(range(1, jobs + 1))}}}\n{POINT_STAGE}"
    try:
        plan = planned(cluster, slurm, STAGE if jobs == 1 else stages)
    except SpecError as error:
        return "\n".join(str(problem) for problem in error.problems), ""
    return "", "\n".join(str(problem) for problem in plan.warnings)


def smallest(rule: SiteRuleSection) -> dict[str, Any]:
    """Return resources that the rule is about and that no rule refuses."""
    slurm: dict[str, Any] = {"nodes": rule.from_nodes or 1, "time": "10m"}
    if rule.partitions:
        slurm["partition"] = rule.partitions[0]
    if rule.qos:
        slurm["qos"] = rule.qos[0]
    return slurm


def at_the_limit(rule: SiteRuleSection) -> dict[str, Any]:
    slurm = smallest(rule)
    if rule.max_time is not None:
        slurm |= {"nodes": rule.to_nodes or slurm["nodes"], "time": f"{parse_duration(rule.max_time) // 60}m"}
    if rule.max_nodes is not None:
        slurm["nodes"] = rule.max_nodes
    if rule.max_node_hours is not None:
        slurm["time"] = f"{int(rule.max_node_hours * 60)}m"
    if rule.whole_node_gpus is not None:
        slurm["gpus_per_node"] = rule.whole_node_gpus
    return slurm


def beyond(rule: SiteRuleSection, cluster: ClusterProfile) -> tuple[ClusterProfile, dict[str, Any]]:
    slurm = at_the_limit(rule)
    if rule.no_run_root:
        return cluster.model_copy(update={"run_root": f"{rule.no_run_root[-1]}/me/runs"}), slurm
    if rule.max_nodes is not None:
        slurm["nodes"] += 1
    elif rule.max_time is not None or rule.max_node_hours is not None:
        slurm["time"] = f"{int(slurm['time'].removesuffix('m')) + 1}m"
    elif rule.whole_node_gpus is not None:
        slurm["gpus_per_node"] -= 1
    elif rule.refused_options:
        slurm["options"] = [f"--{rule.refused_options[0]}={_REQUESTS[rule.refused_options[0]]}"]
    elif rule.required:
        key = rule.required[0]
        slurm.pop(key, None)
        default = cluster.slurm.model_copy(update={key: None})
        return cluster.model_copy(update={"slurm": default}), slurm
    return cluster, slurm


def jobs_beyond(rule: SiteRuleSection) -> int:
    """Return how many jobs like those of :func:`beyond` violate the rule."""
    most = rule.max_jobs or rule.max_running or rule.max_running_nodes
    return 1 if most is None else most + 1


def only_warns(rule: SiteRuleSection) -> bool:
    """Return whether ``lint`` warns about the jobs of :func:`beyond` instead of refusing them."""
    counts = rule.max_jobs or rule.max_running or rule.max_running_nodes
    return not rule.verified or rule.advice or rule.whole_node_gpus is not None or counts is not None


def makes_jobs_wait(rule: SiteRuleSection) -> bool:
    """Return whether the site accepts jobs that violate the rule, and starts them later."""
    return rule.max_running is not None or rule.max_running_nodes is not None
