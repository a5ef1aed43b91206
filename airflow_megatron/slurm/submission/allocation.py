"""Choose the number of nodes and the excluded nodes of a training's next attempt from the state of its partition."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.slurm.remote.quoting import quote
from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.outcomes import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.slurm.remote.profile import SlurmCommands
    from airflow_megatron.slurm.verdicts.verdict import Verdict

_UNUSABLE: Final = ("down", "drain", "fail", "inval", "unknown")
_NODE_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Allocation:
    """The allocation that an attempt requests.

    :param nodes: number of nodes.
    :param exclude: nodes to exclude.
    """

    nodes: int
    exclude: tuple[str, ...] = ()


def partition_command(commands: SlurmCommands, partition: str | None) -> str:
    """Return the shell command that lists the nodes of a partition; None selects the default partition."""
    chosen = f" -p {quote(partition)}" if partition else ""
    return f"{commands.command('sinfo')} -h -N{chosen} -o '%P %N %T'"


def parse_partition(output: str, partition: str | None) -> dict[str, bool]:
    """Return node → whether jobs can start on it, from the output of :func:`partition_command`."""
    found: dict[str, bool] = {}
    for line in output.split("\n"):
        words = line.split()
        if len(words) == 3 and (partition or words[0].endswith("*")):
            # an asterisk after the state marks a node that does not respond
            found[words[1]] = not words[2].startswith(_UNUSABLE) and not words[2].endswith("*")
    return found


def choose_allocation(
    wanted: int,
    smaller: Sequence[int],
    excluded: Sequence[str],
    *,
    lost: int,
    shrink_after: int,
    partition: Mapping[str, bool] | None,
    kept_off: str | None = None,
) -> Allocation:
    """Choose nodes for the next attempt.

    :param wanted: number of nodes in the spec.
    :param smaller: smaller numbers of nodes with which the training may continue, the largest first.
    :param excluded: failed nodes, the most recent failure first.
    :param lost: number of newest consecutive attempts that lost a node (:func:`lost_in_a_row`).
    :param shrink_after: number of lost attempts after which the next smaller number of nodes is used.
    :param partition: node → whether jobs can start on it; None if unknown.
    :param kept_off: ``exclude`` of the spec; expressions with brackets are not expanded.
    """
    sizes = (wanted, *smaller)
    step = min(lost // shrink_after, len(sizes) - 1)
    if partition is None:
        return Allocation(sizes[step], tuple(excluded))
    own = {name for name in (kept_off or "").split(",") if _NODE_NAME.fullmatch(name)}
    there = partition.keys() - own
    known = tuple(node for node in excluded if node in there)
    good = sum(partition[node] for node in there if node not in known)
    while step < len(sizes) - 1 and good < sizes[step]:
        step += 1
    # sbatch refuses a job if --exclude leaves too few nodes: drop the oldest failures first
    room = max(len(there) - sizes[step], 0)
    return Allocation(sizes[step], known[:room])


def lost_in_a_row(verdicts: Sequence[Verdict]) -> int:
    """Return the number of newest consecutive attempts that ended with a node failure.

    :param verdicts: verdicts of the attempts, oldest first.
    """
    count = 0
    for verdict in reversed(verdicts):
        by_node = verdict.failed_nodes or verdict.state in {JobState.NODE_FAIL, JobState.BOOT_FAIL}
        if verdict.outcome is not Outcome.RETRYABLE or not by_node:
            break
        count += 1
    return count
