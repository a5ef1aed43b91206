"""Refusals of sbatch: retried or final, and which key of the spec to change."""

from __future__ import annotations

import re

_HINTS = (
    (
        r"account or account/partition",
        "check slurm.account and slurm.partition; `sacctmgr show assoc user=$USER` lists what you may use",
    ),
    (r"nvalid partition", "check slurm.partition; `sinfo -s` lists the partitions"),
    (
        r"nvalid qos",
        "check slurm.qos; `sacctmgr show assoc user=$USER format=account,partition,qos` lists yours",
    ),
    (r"QOSMin", "request more, or use another slurm.qos (`sacctmgr show qos`)"),
    (
        r"(?:QOS|Assoc)\w+Limit|size and/or time limits",
        "request less (nodes, gpus_per_node, time), or use another slurm.qos (`sacctmgr show qos`)",
    ),
    (r"time limit is invalid|Time limit", "shorten slurm.time; `sinfo -o '%P %l'` lists the longest"),
    (
        r"[Nn]ode (?:count|configuration)",
        "request what the nodes of the partition have: nodes, gpus_per_node, cpus_per_task, mem (`sinfo -N -l`)",
    ),
    (
        r"\(gres\)|GRES|gres",
        "check gpu_option and gpu_type of the cluster profile; `sinfo -o '%P %G'` lists GPUs",
    ),
    (r"feature", "check slurm.constraint; `sinfo -o '%P %f'` lists features"),
    (r"reservation", "check slurm.reservation; `scontrol show reservation` lists them"),
    (r"node name|excluded", "check slurm.exclude; `sinfo -N` lists node names"),
    (r"(?:unrecognized|invalid|ambiguous).* option|requires an argument", "check slurm.options"),
)


_BY_SBATCH = "sbatch (exit status "
_NOT_RUN = re.compile(rf"{re.escape(_BY_SBATCH)}12[67]\)")
_NOT_RUN_HINT = "correct slurm_bin of the cluster profile, or set login_shell: true"
_RECORDED = re.compile(r"^status refused\nmessage (.*)$", re.MULTILINE)


def described_refusal(text: str) -> str:
    """Return what a user reads after a submission was refused with *text*: by whom, and a hint if there is one."""
    if _NOT_RUN.match(text):
        return f"sbatch cannot be run on the login node: {text}; {_NOT_RUN_HINT}"
    if not text.startswith(_BY_SBATCH):
        return f"the job was not submitted: {text}"
    hint = refusal_hint(text)
    return f"Slurm refuses the job: {text}{hint and f'; {hint}'}"


def recorded_refusal(released: str) -> str:
    """Return sbatch's message in a claim's file ``released``, empty if the claim did not end with a refusal."""
    found = _RECORDED.search(released)
    return found[1] if found else ""


def refusal_hint(text: str) -> str:
    """Return a hint after sbatch refused a job with *text*, empty for an unknown reason."""
    return next((hint for pattern, hint in _HINTS if re.search(pattern, text)), "")
