"""Going back to an earlier checkpoint when the numbers of a training went bad (NaN, a loss spike).

Megatron's own checks end the job or only report; teams then rewind by hand, to a checkpoint before the spike,
and lower the learning rate or pass over data (the logbooks of OPT-175B and BLOOM). :func:`choose_rollback`
says where to; :func:`rollback_script` moves the tracker and renames what is newer ``rolled_back_…``: nothing is
deleted. It may run any number of times, and be killed at any point.

Only while no job writes to the directory: between an attempt's end and the next submission.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import TransportError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.slurm.verdicts.verdict import Verdict

ROLLED_BACK_PREFIX: Final = "rolled_back_"


@dataclass(frozen=True)
class Rollback:
    """Make an earlier checkpoint the one that is loaded.

    :param iteration: of that checkpoint.
    :param tracked: what the tracker held when this was decided.
    """

    iteration: int
    tracked: int


class RollbackError(AirflowMegatronError):
    """There is nothing to go back to, or the login node could not rename or write."""


def choose_rollback(
    complete: Sequence[int], verdicts: Sequence[Verdict], *, tracked: int | None, began_at: int
) -> Rollback:
    """Choose the newest complete checkpoint from before the numbers went bad.

    When they went bad again, and no later than the last time, the checkpoint that the attempt began with is passed
    over: it leads to the same end.

    :param complete: iterations of the complete checkpoints.
    :param verdicts: on the attempts of the series; the last one asks for the rollback.
    :param tracked: the iteration that the tracker holds.
    :param began_at: the iteration that the last attempt began with, 0 for none.
    :raises RollbackError: when there is no such checkpoint
    """
    last = verdicts[-1]
    before = last.before_iteration
    repeated = len(verdicts) > 1 and verdicts[-2].rollback and not _later(last, verdicts[-2])
    there = [
        iteration
        for iteration in complete
        if (before is None or iteration < before)
        and (tracked is None or iteration <= tracked)
        and not (repeated and iteration == began_at)
    ]
    if tracked is None or not there:
        where = f" before iteration {before}" if before is not None else ""
        other = f" besides that of iteration {began_at}, which led here" if repeated else ""
        raise RollbackError(f"there is no complete checkpoint{where} to go back to{other}")
    return Rollback(max(there), tracked)


def _later(verdict: Verdict, than: Verdict) -> bool:
    """Return whether the numbers went bad later than the time before."""
    if verdict.before_iteration is None or than.before_iteration is None:
        return False
    return verdict.before_iteration > than.before_iteration


def rollback_script(run_dir: str, step: Rollback) -> str:
    """Return the remote script that does *step* in a run directory.

    :param run_dir: the directory that holds ``checkpoints/``, absolute.
    :raises QuotingError: for a path that no shell can pass on.
    """
    words = (
        quote_path(run_dir.rstrip("/") or "/"),
        str(step.iteration),
        str(step.tracked),
        quote(ROLLED_BACK_PREFIX),
    )
    functions = f"{shell_file('checkpoint_folder')}\n{shell_file('rollback')}"
    return framed(f"{functions}\nam_rollback {' '.join(words)}")


def parse_rollback(result: CommandResult) -> list[str]:
    """Return the new names of what was set aside.

    :raises RollbackError: when the folder is not as it was when this was decided, or a file operation failed.
    :raises TransportError: when the answer is not whole; run the script again.
    """
    aside: list[str] = []
    for line in unframed(result):
        word, _, detail = line.partition(" ")
        match word:
            case "aside":
                aside.append(detail)
            case "rolled_back":
                return aside
            case "refused" | "failed":
                raise RollbackError(detail or "no reason given")
            case _:
                pass
    raise TransportError("the answer on going back to an earlier checkpoint holds no result")
