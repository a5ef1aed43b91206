"""Verdict on an attempt: compares one observation with the expected result of the stage."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from airflow_megatron.slurm.states.exit_codes import (
    DUPLICATE_EXIT_CODE,
    RERUN_EXIT_CODE,
    STEPPED_BACK_EXIT_CODE,
    UNWRITABLE_EXIT_CODE,
)
from airflow_megatron.slurm.states.job_states import JobState, cancelled_by
from airflow_megatron.slurm.states.observation import AccountingRow
from airflow_megatron.slurm.states.reasons import help_needed
from airflow_megatron.slurm.verdicts.outcomes import Outcome as Outcome
from airflow_megatron.slurm.verdicts.progress import Progress
from airflow_megatron.slurm.verdicts.signatures import SignatureMatch, find_signature, shipped_signatures
from airflow_megatron.spec.documents.checkpoint_directories import directory_name
from airflow_megatron.spec.layout.run_layout import EXIT_RECORD
from airflow_megatron.spec.layout.tracker import tracked_iteration
from airflow_megatron.spec.trust.json_records import real, whole, word

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_megatron.slurm.remote.records import ExitRecord
    from airflow_megatron.slurm.states.observation import ControllerRow, Observation, QueueRow
    from airflow_megatron.slurm.verdicts.signatures import Signature

SETTLE_S = 10.0
"""Seconds until files written by a job are visible on the login node (network file systems)."""

ACCOUNTING_LAG_S = 60.0
"""Seconds for which sacct may report RUNNING for a job that has left the queue; then ``exit.json`` decides."""

CLOCK_SKEW_S = 60.0
"""Maximum seconds by which the login node's clock may lag the controller's; a later end has no known age."""

RELAUNCH_S = 5.0
"""Maximum seconds until a controller cancels a second launch of a job that already runs on its node."""

LAUNCH_S = 30.0
"""Maximum seconds until slurmd gives up the launch of a job; 12 s were observed after several killed daemons."""

_SIGTERM = 15
_SIGKILL = 9
_NODE_FAILURE_LINE = re.compile(rb"[Nn]ode failure on ([A-Za-z0-9._-]{1,80})(?![A-Za-z0-9._-])")
_MOST_FAILED_NODES = 64
_SINGLE_NODE = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class EndedFor:
    """Limits of the time since a job's end, by one clock, because those of Slurm and of the login node may differ.

    :param least: seconds since an observation has first shown the job as ended
    :param most: seconds since an observation has last shown it as running
    """

    least: float = 0.0
    most: float = math.inf


UNKNOWN_AGE = EndedFor()


@dataclass(frozen=True)
class Expectation:
    """The expected result of a stage.

    :param kind: ``train``: reach *train_iters* and write a complete checkpoint of that iteration. ``command``: exit
        with status 0 and write *required_files*.
    :param train_iters: Megatron's ``--train-iters``.
    :param complete: returns for the files of an ``iter_*`` directory (path → size in bytes) whether the checkpoint is
        complete (:func:`airflow_megatron.megatron.checkpoints.completeness.checkpoint_verdict`).
    :param required_files: absolute paths, which must be in the watch's ``check_files``.
    :param announced: whether the job has announced its end (``do: finish``); then only its outputs count, not its exit
        status.
    """

    kind: Literal["train", "command"]
    train_iters: int | None = None
    complete: Callable[[Mapping[str, int]], bool] | None = None
    required_files: tuple[str, ...] = ()
    announced: bool = False

    def __post_init__(self) -> None:
        """Refuse an incomplete expectation."""
        if self.kind == "train" and (self.train_iters is None or self.complete is None):
            raise ValueError("an expectation of kind 'train' needs train_iters and complete")


@dataclass(frozen=True)
class Verdict:
    """The outcome of an attempt, with the evidence for it.

    :param outcome: see :class:`Outcome`.
    :param reason: one sentence that names the decisive evidence.
    :param state: Slurm's state, None if neither squeue nor sacct reports one.
    :param exit_code: exit status of the job script, None if unknown.
    :param iteration: iteration of the newest checkpoint by the tracker file, 0 before the first; None for a command.
    :param job_id: the judged job; for a duplicate, the job that owns the attempt.
    :param node_list: Slurm's expression for the nodes of the job.
    :param failed_nodes: nodes known to have failed.
    :param line: the decisive log line, None if there is none.
    :param elapsed: run time of the job in seconds, None if unknown.
    :param signature: name of the matching catalogue entry (:mod:`airflow_megatron.slurm.verdicts.signatures`).
    :param permanent: whether the next attempt would fail in the same way.
    :param damaged_iteration: iteration of the checkpoint that the log reports as damaged.
    :param expected: ``oom`` if the job ran out of memory as expected.
    :param rollback: whether the training failed numerically (NaN, a loss spike), so that the next attempt must start
        from an earlier checkpoint.
    :param before_iteration: first iteration of the numerical failure, None if unknown.
    :param stopped: whether this verdict stops a running job, which is cancelled after the verdict is recorded.
    :param warning: a warning about a finished job.
    :param judged: Unix time at which the verdict was recorded.
    :param progress: progress of a command.
    """

    outcome: Outcome
    reason: str
    state: JobState | None = None
    exit_code: int | None = None
    iteration: int | None = None
    job_id: str | None = None
    node_list: str = ""
    failed_nodes: tuple[str, ...] = ()
    line: str | None = None
    elapsed: float | None = None
    signature: str | None = None
    permanent: bool = False
    damaged_iteration: int | None = None
    expected: str | None = None
    rollback: bool = False
    before_iteration: int | None = None
    stopped: bool = False
    judged: float | None = None
    warning: str | None = None
    progress: Progress | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object for ``verdict.json``."""
        return {**asdict(self), "failed_nodes": list(self.failed_nodes)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Verdict:
        """Parse the output of :meth:`to_json`; unknown keys are ignored.

        :raises KeyError: without ``outcome`` or ``reason``
        :raises ValueError: for an unknown outcome or state
        """
        return cls(
            outcome=Outcome(str(value["outcome"])),
            reason=str(value["reason"]),
            state=JobState(str(value["state"])) if value.get("state") else None,
            exit_code=whole(value.get("exit_code")),
            iteration=whole(value.get("iteration")),
            job_id=str(value["job_id"]) if value.get("job_id") else None,
            node_list=word(value.get("node_list")) or "",
            failed_nodes=_words(value.get("failed_nodes")),
            line=word(value.get("line")),
            elapsed=real(value.get("elapsed")),
            signature=word(value.get("signature")),
            permanent=bool(value.get("permanent", False)),
            damaged_iteration=whole(value.get("damaged_iteration")),
            expected=word(value.get("expected")),
            rollback=bool(value.get("rollback", False)),
            before_iteration=whole(value.get("before_iteration")),
            stopped=bool(value.get("stopped", False)),
            judged=real(value.get("judged")),
            warning=word(value.get("warning")),
            progress=Progress.from_json(value.get("progress")),
        )


def _words(value: object) -> tuple[str, ...]:
    return tuple(filter(None, map(word, value))) if isinstance(value, list | tuple) else ()


@dataclass(frozen=True)
class _Ending:
    """How the job ended, from the most reliable available source."""

    source: str
    state: JobState
    state_text: str
    exit_code: int | None
    exit_signal: int
    ended: float | None
    elapsed: float | None
    node_list: str
    lost: str = ""
    """What went wrong if Slurm itself cancelled the job, for example ``did not launch it``."""
    killed: bool = False
    """Whether the script was killed before it could record its end."""


def judge(
    observation: Observation,
    expectation: Expectation,
    *,
    log_tail: bytes = b"",
    signatures: Sequence[Signature] | None = None,
    ended_for: EndedFor = UNKNOWN_AGE,
) -> Verdict:
    """Return the verdict on an attempt from one observation.

    The sources in order of precedence: final accounting; slurmctld's record (squeue's row, with scontrol's exit code if
    sacct fails); ``exit.json``; accounting that still reports RUNNING. There is no verdict after a failed query, or on
    a job that neither squeue nor sacct reports.

    :param observation: the newest observation.
    :param expectation: the expected result of the stage.
    :param log_tail: the last part of the job's log (about 64 KiB), searched for signatures.
    :param signatures: signatures in order of precedence; the shipped catalogue when None.
    :param ended_for: what earlier observations show about the time since the end.
    """
    iteration = (tracked_iteration(observation.tracker) or 0) if expectation.kind == "train" else None
    queue, accounting = observation.queue, observation.accounting
    job_id = (queue.job_id if queue else None) or (accounting.job_id if accounting else None)

    def waiting(outcome: Outcome, reason: str, state: JobState | None = None) -> Verdict:
        return Verdict(outcome, reason, state, None, iteration, job_id, queue.node_list if queue else "")

    if observation.unreachable is not None:
        return waiting(Outcome.UNKNOWN, f"the login node does not answer: {observation.unreachable.reason}")
    if not observation.queue_ok:
        return waiting(Outcome.UNKNOWN, f"squeue does not answer{_complaint(observation, 'squeue')}")
    if queue is not None and not queue.state.ended:
        if queue.state is JobState.UNKNOWN:
            return waiting(
                Outcome.UNKNOWN, "squeue shows a state that this version does not know", queue.state
            )
        why = f" ({queue.reason})" if queue.reason else ""
        held = f"; {needed}" if (needed := help_needed(queue)) else ""
        return waiting(Outcome.ACTIVE, f"job {queue.job_id} is {queue.state.value}{why}{held}", queue.state)

    exit_record = observation.exit
    ending = _ending(observation, exit_record, ended_for)
    if isinstance(ending, str):
        return waiting(Outcome.UNKNOWN, ending, accounting.state if accounting else None)
    achieved, shortfall = _achievement(observation, expectation, iteration)
    catalogue = shipped_signatures() if signatures is None else signatures
    if achieved and ending.state is JobState.NODE_FAIL and exit_record is not None and exit_record.ended_well:
        ending = _ending_by(exit_record)  # the node was lost before it could report to Slurm
    # A script that ends by itself, or after its command was killed, records its end.
    if ending.state is JobState.FAILED and ending.exit_signal == _SIGKILL and exit_record is None:
        ending = replace(ending, killed=True)
    outcome, reason, finding = _weigh(ending, expectation, achieved, log_tail, catalogue)
    settles = _clean(ending) or expectation.announced
    unsettled = not achieved and settles and _age(observation, ending.ended, ended_for) < SETTLE_S
    if unsettled and outcome in {Outcome.ROLLED_OVER, Outcome.FAILED}:
        return waiting(Outcome.UNKNOWN, f"the job has ended; {shortfall}, which may still show", ending.state)
    if not achieved and outcome in {Outcome.ROLLED_OVER, Outcome.FAILED} and shortfall:
        reason = f"{reason}; {shortfall}"
    if outcome is Outcome.DUPLICATE:
        job_id = observation.owner_job_id or job_id
    warning = None
    if outcome is Outcome.FINISHED and not _clean(ending):
        finding = find_signature(catalogue, log_tail, ending.state, ending.exit_code)
        line = f": {finding.line}" if finding is not None else ""
        warning = f"{_described(ending)} after its last checkpoint{line}"
        finding = None
    return Verdict(
        outcome=outcome,
        warning=warning,
        reason=f"{reason} [{ending.source}]",
        state=ending.state,
        exit_code=ending.exit_code,
        iteration=iteration,
        job_id=job_id or (exit_record.job_id if exit_record else None),
        node_list=ending.node_list,
        failed_nodes=_failed_nodes(ending, log_tail, finding, observation.controller),
        line=finding.line if finding else None,
        elapsed=ending.elapsed,
        signature=finding.signature.name if finding else None,
        permanent=finding is not None and finding.signature.permanent and outcome is Outcome.FAILED,
        damaged_iteration=finding.iteration if finding else None,
        rollback=(
            finding is not None
            and finding.signature.rollback
            and outcome is Outcome.FAILED
            and expectation.kind == "train"
        ),
    )


def _ending(observation: Observation, record: ExitRecord | None, ended_for: EndedFor) -> _Ending | str:
    """Return how the job ended, or the reason why that is unknown.

    :param record: its ``exit.json``, None without a complete one.
    """
    queue, accounting = observation.queue, observation.accounting
    revoked = JobState.REVOKED in {accounting.state if accounting else None, queue.state if queue else None}
    if revoked and (accounting is None or accounting.state is JobState.REVOKED or not accounting.state.ended):
        # Not an end: another cluster of the federation has started the job under the same id.
        if record is None:
            return f"another cluster of the federation has taken the job; it has left no {EXIT_RECORD} yet"
        return _ending_by(record)
    row = accounting if accounting is not None and accounting.is_final else queue
    lost = ""
    if row is not None and row.state is JobState.CANCELLED:
        ran = row.ended - row.started if row.ended and row.started else 0.0
        if accounting is not None and row is accounting:  # whose elapsed time lacks that of suspensions
            ran = max(accounting.elapsed, ran) if accounting.elapsed else 0.0
        if record is not None and _relaunch_was_cancelled(row.started, ran, record):
            return _ending_by(record)
        began = record is None and ran <= RELAUNCH_S and observation.owner_job_id == row.job_id
        # for a requeued job, the recorded nodes are those of its previous run
        requeued = observation.controller is not None and observation.controller.restarts > 0
        if record is None and not requeued and _was_cancelled_by_slurm(row, ran, observation):
            lost = _lost(row, began=began)
        settling = _age(observation, row.ended, ended_for) < ACCOUNTING_LAG_S
        if (began or lost) and (settling or observation.log_chunk):
            return (
                "the job was cancelled as soon as it had started; "
                f"its {EXIT_RECORD} shows whether it runs all the same"
            )
    if accounting is not None and accounting.is_final:
        return _Ending(
            "sacct",
            accounting.state,
            accounting.state_text,
            accounting.exit_code,
            accounting.exit_signal,
            accounting.ended,
            accounting.elapsed,
            accounting.node_list,
            lost,
        )
    if queue is not None:
        return _ending_in_queue(observation, queue, record, lost, ended_for)
    if observation.other_name and record is None:
        return (
            f"squeue lists its id under the name {observation.other_name!r}, without the comment of this attempt: "
            "it is another job, or a user has changed both; then restore the name with scontrol update JobName="
        )
    if observation.accounting_enabled:
        if not observation.accounting_ok:
            return f"the job has left the queue and sacct does not answer{_complaint(observation, 'sacct')}"
        if record is None:
            # A cancelled pending task of an array leaves no record (Slurm 22.05).
            if accounting is None and observation.siblings_queued and observation.owner_job_id is None:
                return _Ending("squeue", JobState.CANCELLED, "CANCELLED", None, 0, None, None, "")
            if accounting is None:
                return (
                    f"the job is in neither squeue nor sacct and has left no {EXIT_RECORD}: Slurm has not recorded it "
                    "yet, or its records were purged"
                )
            return f"the job has left the queue while sacct still has it as {accounting.state_text}"
        if _age(observation, record.ended, ended_for) < ACCOUNTING_LAG_S:
            return "the job has left the queue; its accounting is not final yet"
        if accounting is not None and accounting.started and accounting.started > record.ended:
            return f"{EXIT_RECORD} is about an earlier run; sacct has the job as {accounting.state_text}"
    elif record is None:
        return (
            f"the job is not in the queue and has left no {EXIT_RECORD}, and the site keeps no accounting: the queue "
            "does not show it yet, or it ended without a record"
        )
    return _ending_by(record)


def _ending_in_queue(
    observation: Observation, queue: QueueRow, record: ExitRecord | None, lost: str, ended_for: EndedFor
) -> _Ending | str:
    """Return the end of a job that squeue still lists and that has no final sacct record."""
    controller = observation.controller
    if controller is not None and not controller.state.ended:
        return (
            f"the queue had job {queue.job_id} as {queue.state.value}; it is {controller.state.value} again"
        )
    if record is not None and _is_of_an_earlier_run(record, queue, controller):
        record = None
    # Wait for the exit code: it distinguishes a duplicate or a resumable stop from a crash.
    undecided = queue.state is JobState.FAILED and record is None and controller is None
    if undecided and _age(observation, queue.ended, ended_for) < ACCOUNTING_LAG_S:
        return f"the queue has job {queue.job_id} as {queue.state.value}; its exit code is not known yet"
    elapsed = queue.ended - queue.started if queue.ended and queue.started else None
    code, signal = (0 if queue.state is JobState.COMPLETED else None), 0
    if controller is not None:
        code, signal = controller.exit_code, controller.exit_signal
    elif record is not None:
        code = record.exit_code
    source = "squeue" if controller is None else "scontrol"
    return _Ending(
        source, queue.state, queue.state.value, code, signal, queue.ended, elapsed, queue.node_list, lost
    )


def _is_of_an_earlier_run(record: ExitRecord, queue: QueueRow, controller: ControllerRow | None) -> bool:
    """Return whether the job was requeued after this record; Slurm starts it again two minutes later."""
    if controller is not None and controller.restarts > record.restart_count:
        return True
    return queue.started is not None and record.ended < queue.started - CLOCK_SKEW_S


def _was_cancelled_by_slurm(row: AccountingRow | QueueRow, ran_s: float, observation: Observation) -> bool:
    """Return whether Slurm cancelled a job because it lost track of it or could not launch it.

    :param ran_s: seconds for which the job had its nodes.

    A controller that has lost its state gives a recently used id to a new job while a node still runs the old job of
    that id. Then slurmd cancels the new job as root (``do not launch second copy``, Slurm 22.05), or the controller
    takes the end of the old job for the end of the new one, which is still pending. The script of the new job has not
    started, because it would otherwise own the attempt.

    A slurmd that cannot launch a job, and may not requeue it, cancels it as root (``Could not launch job … and not able
    to requeue it``).

    A controller that was killed before it saved the start of a job takes the job's end for the end of a pending job
    (observed with Slurm 22.05 after SIGKILL of slurmctld). Then the script has run. Accounting names every user who
    cancels a job, and here it names nobody. Or it launches the job a second time, and slurmd cancels that as root
    (observed after SIGKILL of both daemons). A script that root cancels records its end, unless its disk is full.
    """
    at_once = ran_s <= RELAUNCH_S
    owner_job_id = observation.owner_job_id
    not_begun = owner_job_id is None and observation.attempt_watched
    if isinstance(row, AccountingRow):
        if row.state_text == JobState.CANCELLED.value:
            return at_once
        by_root = cancelled_by(row.state_text) == "0" and bool(row.node_list)
        if not_begun:
            return by_root and ran_s <= LAUNCH_S
        return by_root and at_once and owner_job_id == row.job_id
    return at_once and not_begun and bool(row.node_list)


def _lost(row: AccountingRow | QueueRow, *, began: bool) -> str:
    if began and isinstance(row, AccountingRow) and cancelled_by(row.state_text) is not None:
        return "launched it twice"
    if began:
        return "had no record of its start"
    return f"could not launch it on {row.node_list}" if row.node_list else "did not launch it"


def _relaunch_was_cancelled(started: float | None, ran: float, record: ExitRecord) -> bool:
    """Return whether Slurm cancelled a second launch that never ran, while the job itself continued.

    A controller that was killed before it saved the start of a job restores the job as pending, launches it again, and
    cancels the second launch because the node already runs the job (observed with Slurm 22.05 after SIGKILL of
    slurmctld). The job then started before the start time that Slurm reports.
    """
    if ran == 0.0:  # otherwise a user may have cancelled a requeued pending job
        return record.signal is None
    return started is not None and record.started < started - 1


def _ending_by(record: ExitRecord) -> _Ending:
    state = JobState.COMPLETED if record.exit_code == 0 else JobState.FAILED
    return _Ending(
        EXIT_RECORD,
        state,
        state.value,
        record.exit_code,
        0,
        record.ended,
        record.ended - record.started,
        record.nodes,
    )


def _weigh(
    ending: _Ending,
    expectation: Expectation,
    achieved: bool,
    log_tail: bytes,
    signatures: Sequence[Signature],
) -> tuple[Outcome, str, SignatureMatch | None]:
    """Return outcome, reason and the decisive log line of a job that has ended."""
    what = _described(ending)
    train = expectation.kind == "train"
    if ending.exit_code == DUPLICATE_EXIT_CODE:
        return Outcome.DUPLICATE, f"{what}: another job owns this attempt", None
    if achieved and (train or _clean(ending) or expectation.announced):
        if train:
            return (
                Outcome.FINISHED,
                f"iteration {expectation.train_iters} has a complete checkpoint; {what}",
                None,
            )
        return Outcome.FINISHED, what if _clean(ending) else f"{what}, after it had announced its end", None
    by_state = _weigh_state(ending, what, train)
    if by_state is not None:
        return *by_state, find_signature(signatures, log_tail, ending.state, ending.exit_code)
    if ending.exit_code == STEPPED_BACK_EXIT_CODE:
        return Outcome.RETRYABLE, f"{what}: it was queued ahead, stepped back, and did not run", None
    if ending.exit_code == UNWRITABLE_EXIT_CODE:
        return (
            Outcome.RETRYABLE,
            f"{what}: it could not write to its directory, and did not run",
            find_signature(signatures, log_tail, ending.state, ending.exit_code),
        )
    if ending.exit_code == RERUN_EXIT_CODE and train:
        return (
            Outcome.RETRYABLE,
            f"{what}: Megatron asks to be resumed to distinguish a transient fault from a lasting one",
            find_signature(signatures, log_tail, ending.state, ending.exit_code, generic=False),
        )
    finding = find_signature(signatures, log_tail, ending.state, ending.exit_code, generic=False)
    if finding is not None:
        if finding.iteration is not None and not train:  # only a training's own checkpoints are set aside
            return Outcome.FAILED, _reason_with_line(what, finding), finding
        if finding.signature.outcome is not Outcome.ROLLED_OVER:
            return finding.signature.outcome, _reason_with_line(what, finding), finding
        if train:
            return Outcome.ROLLED_OVER, _reason_with_line(what, finding), finding
    if train and _clean(ending):
        return Outcome.ROLLED_OVER, f"{what} before the end of training", None
    if train and (ending.exit_signal == _SIGTERM or ending.exit_code == 128 + _SIGTERM):
        return Outcome.ROLLED_OVER, f"{what}: stopped by SIGTERM", None
    if ending.killed:
        # Slurm 22.05 shows the reason JobLaunchFailure for such a job, whatever killed the script.
        reason = f"{what}, and its script could not write {EXIT_RECORD}: it was killed on its node"
        return Outcome.RETRYABLE, reason, find_signature(signatures, log_tail, ending.state, ending.exit_code)
    finding = find_signature(signatures, log_tail, ending.state, ending.exit_code, generic=True)
    if finding is not None:
        return finding.signature.outcome, _reason_with_line(what, finding), finding
    return Outcome.FAILED, what, None


def _weigh_state(ending: _Ending, what: str, train: bool) -> tuple[Outcome, str] | None:
    """Return outcome and reason if Slurm's state alone is decisive."""
    match ending.state:
        case JobState.OUT_OF_MEMORY:
            return Outcome.OUT_OF_MEMORY, f"{what}: the memory limit of a node was reached"
        case JobState.NODE_FAIL | JobState.PREEMPTED | JobState.BOOT_FAIL:
            return Outcome.RETRYABLE, what
        case JobState.CANCELLED:
            if ending.lost:
                return Outcome.RETRYABLE, f"{what} by Slurm, which {ending.lost}"
            by = cancelled_by(ending.state_text)
            return Outcome.CANCELLED, f"{what}" + (f" (user id {by})" if by else "")
        case JobState.DEADLINE:
            return Outcome.FAILED, f"{what}: its --deadline passed"
        case JobState.TIMEOUT:
            return (Outcome.ROLLED_OVER if train else Outcome.FAILED), f"{what}: the time limit was reached"
        case _:
            return None


def _reason_with_line(what: str, finding: SignatureMatch) -> str:
    return f"{what}: {finding.signature.reason}: {finding.line}"


def _described(ending: _Ending) -> str:
    text = f"the job ended as {ending.state.value}"
    if ending.exit_code:
        text += f" with exit code {ending.exit_code}"
    if ending.exit_signal:
        text += f" by signal {ending.exit_signal}"
    return text


def _clean(ending: _Ending) -> bool:
    return ending.state is JobState.COMPLETED and not ending.exit_code and not ending.exit_signal


def _achievement(
    observation: Observation, expectation: Expectation, iteration: int | None
) -> tuple[bool, str]:
    """Return whether the stage has reached its goal, and otherwise what is missing."""
    if expectation.kind == "command":
        missing = [path for path in expectation.required_files if not observation.existing.get(path, False)]
        return not missing, f"{missing[0]} is missing" if missing else ""
    if iteration is None or expectation.train_iters is None or expectation.complete is None:
        raise ValueError("an expectation of kind 'train' needs train_iters and complete")
    if iteration < expectation.train_iters:
        return False, f"the newest checkpoint is of iteration {iteration} of {expectation.train_iters}"
    files = observation.checkpoint_files.get(directory_name(iteration, observation.checkpoint_files))
    if files is None or not expectation.complete(files):
        return False, f"the checkpoint of iteration {iteration} is not complete"
    return True, ""


def _age(observation: Observation, ended: float | None, ended_for: EndedFor) -> float:
    """Return the seconds since the end; infinite if the end is unknown.

    :param ended_for: corrects the difference of the two clocks
    """
    if not ended:
        return math.inf
    age = observation.time - ended
    return max(ended_for.least, min(age if age > -CLOCK_SKEW_S else math.inf, ended_for.most))


def _complaint(observation: Observation, command: str) -> str:
    message = next((error for error in observation.errors if error.startswith(command)), "")
    return f": {message.removeprefix(f'{command}: ')}" if message else ""


def _failed_nodes(
    ending: _Ending, log_tail: bytes, finding: SignatureMatch | None, controller: ControllerRow | None
) -> tuple[str, ...]:
    """Return the failed nodes: the node that Slurm or the log names, or the only node of the job.

    ``CANCELLED … DUE TO NODE FAILURE`` names the batch node, which is not the failed node.
    """
    if controller is not None and controller.failed_node:
        return (controller.failed_node,)
    named = tuple(dict.fromkeys(name.decode() for name in _NODE_FAILURE_LINE.findall(log_tail)))
    if named:
        return named[:_MOST_FAILED_NODES]
    if finding is not None and finding.node is not None:
        return (finding.node,)
    by_node = ending.killed or ending.state in {JobState.NODE_FAIL, JobState.BOOT_FAIL}
    if by_node and _SINGLE_NODE.fullmatch(ending.node_list):
        return (ending.node_list,)
    return ()
