"""Rollback to an earlier checkpoint after numerical failure of a training (NaN, a loss spike).

Megatron's checks end the job or only report. Teams then go back manually to a checkpoint before the spike and lower the
learning rate or skip data (the logbooks of OPT-175B and BLOOM). :func:`choose_rollback` chooses the checkpoint;
:func:`rollback_script` changes the tracker and renames newer checkpoints to ``rolled_back_…``; it deletes nothing. The
script is idempotent and may be killed at any point.

It must run only while no job writes to the directory: between an attempt's end and the next submission.
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
    """The decision to load an earlier checkpoint.

    :param iteration: iteration of that checkpoint.
    :param tracked: content of the tracker at the time of the decision.
    """

    iteration: int
    tracked: int


class RollbackError(AirflowMegatronError):
    """There is no earlier checkpoint, or the login node could not rename or write."""


def choose_rollback(
    complete: Sequence[int], verdicts: Sequence[Verdict], *, tracked: int | None, began_at: int
) -> Rollback:
    """Choose the newest complete checkpoint before the numerical failure.

    If the failure repeats no later than the previous time, the checkpoint from which the attempt started is excluded,
    because it leads to the same failure.

    :param complete: iterations of the complete checkpoints.
    :param verdicts: verdicts of the attempts in the series; the last one requests the rollback.
    :param tracked: iteration in the tracker.
    :param began_at: iteration from which the last attempt started, 0 for none.
    :raises RollbackError: if there is no such checkpoint
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
    """Return whether the failure occurred at a later iteration than the previous one."""
    if verdict.before_iteration is None or than.before_iteration is None:
        return False
    return verdict.before_iteration > than.before_iteration


def rollback_script(run_dir: str, step: Rollback) -> str:
    """Return the remote script that carries out *step* in a run directory.

    :param run_dir: absolute path of the directory that holds ``checkpoints/``.
    :raises QuotingError: for a path that a shell cannot represent.
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
    """Return the new names of the renamed directories.

    :raises RollbackError: if the folder has changed since the decision, or a file operation failed.
    :raises TransportError: if the output is incomplete; run the script again.
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
