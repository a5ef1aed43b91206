"""Parse ``scontrol -o show job``: the exit code of jobs that slurmctld still keeps.

It is used where accounting is not available, because squeue shows that a job failed but not its exit code. The order of
the fields is that of ``slurm_sprint_job_info`` (``src/api/job_info.c``, Slurm 20.02 to 25.05). Slurm quotes nothing, so
the job name, directory or comment may contain text that looks like other fields. The parser therefore reads only fields
before the directory and the comment, and returns the name unchanged for the caller to compare.
"""

from __future__ import annotations

import re

from airflow_megatron.slurm.states.job_states import parse_state
from airflow_megatron.slurm.states.observation import ControllerRow

_ROW = re.compile(
    r"JobId=(?P<id>\d+) "
    r"(?:ArrayJobId=(?P<array>\d+) ArrayTaskId=(?P<task>\S+) (?:ArrayTaskThrottle=\d+ )?)?"
    r"(?:HetJobId=(?P<het>\d+) HetJobOffset=(?P<component>\d+) )?"
    r"JobName=(?P<name>.{0,1024}?) (?:HetJobIdSet=\S+ )?UserId=\S.{0,1024}? "
    r"JobState=(?P<state>\S+) Reason=(?P<reason>\S*) (?:FailedNode=(?P<failed>\S+) )?Dependency=\S* "
    r"Requeue=(?P<requeue>\d+) Restarts=(?P<restarts>\d+) BatchFlag=\d+ Reboot=\d+ "
    r"ExitCode=(?P<code>\d+):(?P<signal>\d+) (?P<rest>.*)"
)
_TIME = re.compile(r"(?<= )(StartTime|EndTime)=(\d+)(?= )")
_NODES = re.compile(r" NodeList=(\S*) (?:BatchHost=(\S+) )?")
_LONGEST_ROW = 16 * 1024
_PROMPT = "scontrol: "
"""The prompt that scontrol prints before each result when it reads commands from standard input."""


def parse_controller_row(line: str) -> ControllerRow | None:
    """Parse one line of ``scontrol -o show job``; return None for other lines (an echoed command, an error).

    Times must be Unix seconds (``SLURM_TIME_FORMAT=%s``); other formats are ignored.
    """
    match = _ROW.match(line[:_LONGEST_ROW].strip().removeprefix(_PROMPT))
    if match is None:
        return None
    rest = match["rest"].partition(" Command=")[0] + " "
    times = {name: float(value) or None for name, value in _TIME.findall(rest)}
    nodes = _NODES.search(rest)
    node_list = nodes[1] if nodes else ""
    return ControllerRow(
        job_id=_printed_id(match),
        name=match["name"],
        state=parse_state(match["state"]),
        reason="" if match["reason"] == "None" else match["reason"],
        exit_code=int(match["code"]),
        exit_signal=int(match["signal"]),
        requeue=match["requeue"] != "0",
        restarts=int(match["restarts"]),
        node_list="" if node_list == "(null)" else node_list,
        batch_host=(nodes[2] or "") if nodes else "",
        failed_node=match["failed"] or "",
        started=times.get("StartTime"),
        ended=times.get("EndTime"),
    )


def _printed_id(match: re.Match[str]) -> str:
    """Return the id as squeue and sacct print it: ``7``, ``7_3``, ``7_[5-9%2]``, ``7+1``."""
    if match["array"]:
        task = match["task"]
        return f"{match['array']}_{task}" if task.isdecimal() else f"{match['array']}_[{task}]"
    if match["het"]:
        return f"{match['het']}+{match['component']}"
    return str(match["id"])
