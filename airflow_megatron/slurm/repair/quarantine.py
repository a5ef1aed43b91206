"""Setting a damaged newest checkpoint aside, so that the next attempt goes on from the newest complete one.

A job that dies while it saves, or a file system that loses data, leaves a checkpoint that the tracker may name and
that cannot be loaded: every restart then ends the same way. :func:`decide` says what to do, from a listing;
:func:`quarantine_script` does it on the cluster: the tracker is moved back, then the directory renamed
``failed_iter_N`` (``failed_global_stepN``). It may run any number of times, and be killed at any point.

Only while no job writes to the directory: between an attempt's end and the next submission.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import TransportError
from airflow_megatron.spec.documents.checkpoint_directories import iteration_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.remote.transport import CommandResult

QUARANTINE_PREFIX: Final = "failed_"
MAX_QUARANTINED: Final = 2
"""How many checkpoints of one run may be set aside: beyond that the fault is not in the checkpoint."""

Completeness = Literal["complete", "incomplete", "unverifiable"]


@dataclass(frozen=True)
class Quarantine:
    """Set one checkpoint aside.

    :param iteration: of the damaged checkpoint.
    :param back_to: iteration of the newest complete one; None when there is none: training starts anew.
    :param tracked: what the tracker held when this was decided.
    :param reason: one sentence.
    """

    iteration: int
    back_to: int | None
    tracked: int | None
    reason: str


@dataclass(frozen=True)
class NoQuarantine:
    """Nothing is set aside.

    :param reason: one sentence.
    :param hopeless: the next attempt would load the damaged checkpoint again: better to stop.
    """

    reason: str
    hopeless: bool = False


def decide(
    verdicts: Mapping[str, Completeness],
    *,
    tracked: int | None,
    damaged: int | None = None,
    quarantined: int = 0,
    limit: int = MAX_QUARANTINED,
    allow_fresh_start: bool = False,
) -> Quarantine | NoQuarantine:
    """Return whether the checkpoint that the next attempt would load has to be set aside.

    :param verdicts: name of each directory in the checkpoints folder → its verdict; other names are passed over.
    :param tracked: the iteration that the tracker holds: the one to be loaded. None without a tracker.
    :param damaged: iteration of the checkpoint that the job's log calls damaged, whatever its listing looks like
        (:attr:`airflow_megatron.slurm.verdicts.verdict.Verdict.damaged_iteration`).
    :param quarantined: how many ``failed_*`` the folder holds already.
    :param limit: how many it may hold.
    :param allow_fresh_start: set the only checkpoint aside too, which gives up all progress.
    """
    if tracked is None:
        return NoQuarantine("no tracker names a checkpoint: nothing would be loaded")
    by_iteration = {
        iteration: verdict
        for name, verdict in verdicts.items()
        if (iteration := iteration_of(name)) is not None
    }
    found = by_iteration.get(tracked)
    if damaged is not None and damaged != tracked:
        return NoQuarantine(f"the log calls iteration {damaged} damaged, but {tracked} would be loaded")
    if found is None:
        why = f"the tracker holds iteration {tracked}, which is gone"
    elif damaged == tracked:
        why = f"the log says that the checkpoint of iteration {tracked} cannot be loaded"
    elif found == "incomplete":
        why = f"the checkpoint of iteration {tracked} is incomplete"
    else:
        return NoQuarantine(f"the checkpoint of iteration {tracked} is {found}")
    back_to = max(
        (number for number, verdict in by_iteration.items() if verdict == "complete" and number < tracked),
        default=None,
    )
    if back_to is None and not allow_fresh_start:
        return NoQuarantine(f"{why}, and there is no complete checkpoint before it", hopeless=True)
    if found is not None and quarantined >= limit:
        return NoQuarantine(f"{why}, and {quarantined} checkpoints were set aside already", hopeless=True)
    return Quarantine(tracked, back_to, tracked, why)


@dataclass(frozen=True)
class QuarantineResult:
    """What the script did.

    :param status: ``quarantined``: renamed, tracker moved; ``moved``: the directory was gone, the tracker moved;
        ``already``: an earlier run of the script had done it; ``exhausted``: the limit is reached, nothing done;
        ``refused``: the folder is not as it was when this was decided, nothing done.
    :param detail: new name of the directory, or why not.
    """

    status: Literal["quarantined", "moved", "already", "exhausted", "refused"]
    detail: str = ""

    @property
    def done(self) -> bool:
        """Whether the next attempt loads the good checkpoint."""
        return self.status in {"quarantined", "moved", "already"}


class QuarantineError(AirflowMegatronError):
    """The login node could not rename or write; the tracker may have been moved already."""


def quarantine_script(checkpoint_dir: str, step: Quarantine, *, limit: int = MAX_QUARANTINED) -> str:
    """Return the remote script that does *step* in a checkpoints folder.

    :param checkpoint_dir: Megatron's ``--save`` directory, absolute.
    :param limit: how many checkpoints may be set aside in it.
    :raises QuotingError: for a path that no shell can pass on.
    """
    if min(step.iteration, step.back_to or 0) < 0:
        raise ValueError(f"an iteration cannot be negative: {step.iteration}, {step.back_to}")
    words = (
        quote_path(checkpoint_dir.rstrip("/") or "/"),
        str(step.iteration),
        quote(QUARANTINE_PREFIX),
        quote(str(limit)),
        quote("" if step.back_to is None else str(step.back_to)),
        quote("" if step.tracked is None else str(step.tracked)),
    )
    functions = f"{shell_file('checkpoint_folder')}\n{shell_file('quarantine')}"
    return framed(f"{functions}\nam_quarantine {' '.join(words)}")


def parse_quarantine(result: CommandResult) -> QuarantineResult:
    """Return what the script did.

    :raises QuarantineError: when a file operation failed.
    :raises TransportError: when the answer is not whole; run the script again.
    """
    for line in unframed(result):
        word, _, detail = line.partition(" ")
        match word:
            case "quarantined" | "moved" | "already" | "exhausted" | "refused":
                return QuarantineResult(word, detail)
            case "failed":
                raise QuarantineError(detail or "no reason given")
            case _:
                pass
    raise TransportError("the answer on the quarantine of a checkpoint holds no result")
