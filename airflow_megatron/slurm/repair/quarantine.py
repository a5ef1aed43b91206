"""Quarantine of a damaged newest checkpoint, so that the next attempt continues from the newest complete one.

A job that is killed while it saves, or a file system that loses data, leaves a checkpoint that cannot be loaded. If the
tracker names it, every restart fails in the same way. :func:`decide` chooses the action from a listing;
:func:`quarantine_script` carries it out on the cluster: it sets the tracker to the earlier checkpoint and then renames
the directory to ``failed_iter_N`` (``failed_global_stepN``). The script is idempotent and may be killed at any point.

It must run only while no job writes to the directory: between an attempt's end and the next submission.
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
from airflow_megatron.spec.documents.quantities import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_megatron.slurm.remote.transport import CommandResult

QUARANTINE_PREFIX: Final = "failed_"
MAX_QUARANTINED: Final = 2
"""Maximum number of quarantined checkpoints per run; with more, the checkpoint is not the cause of the failures."""

Completeness = Literal["complete", "incomplete", "unverifiable"]


@dataclass(frozen=True)
class Quarantine:
    """The decision to quarantine one checkpoint.

    :param iteration: iteration of the damaged checkpoint.
    :param back_to: iteration of the newest complete checkpoint; None if there is none and training starts from scratch.
    :param tracked: content of the tracker at the time of the decision.
    :param reason: one sentence.
    """

    iteration: int
    back_to: int | None
    tracked: int | None
    reason: str


@dataclass(frozen=True)
class NoQuarantine:
    """The decision to quarantine nothing.

    :param reason: one sentence.
    :param hopeless: whether the next attempt would load the damaged checkpoint again, so that the job should stop.
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
    """Decide whether the checkpoint that the next attempt would load must be quarantined.

    :param verdicts: name of each directory in the checkpoint directory → its completeness; other names are ignored.
    :param tracked: iteration in the tracker, which the next attempt loads; None without a tracker.
    :param damaged: iteration of the checkpoint that the job's log reports as damaged, regardless of its listing
        (:attr:`airflow_megatron.slurm.verdicts.verdict.Verdict.damaged_iteration`).
    :param quarantined: number of existing ``failed_*`` directories.
    :param limit: maximum of that number.
    :param allow_fresh_start: quarantine the only checkpoint too, which discards all progress.
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
        return NoQuarantine(f"the log reports iteration {damaged} as damaged, but {tracked} would be loaded")
    if found is None:
        why = f"the tracker holds iteration {tracked}, which does not exist"
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
        return NoQuarantine(
            f"{why}, and {counted(quarantined, 'checkpoint was', 'checkpoints were')} set aside already",
            hopeless=True,
        )
    return Quarantine(tracked, back_to, tracked, why)


@dataclass(frozen=True)
class QuarantineResult:
    """The result of the script.

    :param status: ``quarantined``: directory renamed, tracker changed; ``moved``: the directory was missing, tracker
        changed; ``already``: an earlier run of the script had done both; ``exhausted``: the limit is reached, nothing
        changed; ``refused``: the folder has changed since the decision, nothing changed.
    :param detail: new name of the directory, or the reason of the refusal.
    """

    status: Literal["quarantined", "moved", "already", "exhausted", "refused"]
    detail: str = ""

    @property
    def done(self) -> bool:
        """Whether the next attempt loads the good checkpoint."""
        return self.status in {"quarantined", "moved", "already"}


class QuarantineError(AirflowMegatronError):
    """The login node could not rename or write; the tracker may have been changed already."""


def quarantine_script(checkpoint_dir: str, step: Quarantine, *, limit: int = MAX_QUARANTINED) -> str:
    """Return the remote script that carries out *step* in a checkpoint directory.

    :param checkpoint_dir: absolute path of Megatron's ``--save`` directory.
    :param limit: maximum number of quarantined checkpoints in it.
    :raises QuotingError: for a path that a shell cannot represent.
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
    """Return the result of the script.

    :raises QuarantineError: if a file operation failed.
    :raises TransportError: if the output is incomplete; run the script again.
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
