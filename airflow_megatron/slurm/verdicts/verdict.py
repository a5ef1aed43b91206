"""Verdict on an attempt: one observation, compared with what the stage was to achieve."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from airflow_megatron.slurm.states.exit_codes import (
    DUPLICATE_EXIT_CODE,
    RERUN_EXIT_CODE,
    STEPPED_BACK_EXIT_CODE,
    UNWRITABLE_EXIT_CODE,
)
from airflow_megatron.slurm.states.job_states import JobState, cancelled_by
from airflow_megatron.slurm.states.observation import AccountingRow
from airflow_megatron.slurm.states.reasons import needs_a_person
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
"""Time that files written by a job may take to show on the login node of a network file system."""

ACCOUNTING_LAG_S = 60.0
"""How long sacct may still say RUNNING of a job that has left the queue before ``exit.json`` decides."""

CLOCK_SKEW_S = 60.0
"""By how much the login node's clock may be behind the controller's: an end further in the future has no age."""

RELAUNCH_S = 5.0
"""How long a controller may take to cancel a job that it has started although the node already had it."""

_SIGTERM = 15
_NODE_FAILURE_LINE = re.compile(rb"[Nn]ode failure on ([A-Za-z0-9._-]{1,80})(?![A-Za-z0-9._-])")
_MOST_FAILED_NODES = 64
_SINGLE_NODE = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Expectation:
    """What a stage is to achieve.

    :param kind: ``train``: reach *train_iters* and leave a complete checkpoint of it. ``command``: exit 0 and
        leave *required_files*.
    :param train_iters: Megatron's ``--train-iters``.
    :param complete: says of the files of an ``iter_*`` directory (path → bytes) whether the checkpoint is
        whole (:func:`airflow_megatron.megatron.checkpoints.completeness.checkpoint_verdict`).
    :param required_files: absolute paths; they must be among the watch's ``check_files``.
    :param announced: the job has announced its end (``do: finish``): the way in which it ends does not matter, what
        it leaves does.
    """

    kind: Literal["train", "command"]
    train_iters: int | None = None
    complete: Callable[[Mapping[str, int]], bool] | None = None
    required_files: tuple[str, ...] = ()
    announced: bool = False

    def __post_init__(self) -> None:
        """Refuse an expectation that could never be judged."""
        if self.kind == "train" and (self.train_iters is None or self.complete is None):
            raise ValueError("an expectation of kind 'train' needs train_iters and complete")


@dataclass(frozen=True)
class Verdict:
    """What became of an attempt, and why.

    :param outcome: see :class:`Outcome`.
    :param reason: one sentence that names what decided.
    :param state: Slurm's state, None when neither squeue nor sacct has it.
    :param exit_code: of the job script, None when unknown.
    :param iteration: of the newest checkpoint by the tracker file, 0 before the first; None for a command.
    :param job_id: the job that was judged; of a duplicate, the job that owns the attempt.
    :param node_list: Slurm's expression for the nodes it ran on.
    :param failed_nodes: nodes known to have failed.
    :param line: the log line that decided, None when none did.
    :param elapsed: seconds the job ran, None when unknown.
    :param signature: name of the catalogue entry that *line* fits (:mod:`airflow_megatron.slurm.verdicts.signatures`).
    :param permanent: the next attempt would end the same way.
    :param damaged_iteration: of the checkpoint that the log calls damaged.
    :param expected: ``oom`` when the job ran out of memory as it was meant to.
    :param rollback: the numbers of a training went bad (NaN, a loss spike): the next attempt has to begin before that.
    :param before_iteration: from which iteration on they were bad, None when that is not known.
    :param stopped: the job did not end by itself: it is cancelled once this verdict is recorded.
    :param warning: of a job that has finished: what a person should look at all the same.
    :param judged: Unix time at which it was recorded.
    :param progress: of a command: how far it got.
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
        """Return the verdict that :meth:`to_json` wrote; unknown keys are passed over.

        :raises KeyError: without ``outcome`` or ``reason``; ValueError: for an unknown outcome or state.
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
    """How the job ended, by the best source there is."""

    source: str
    state: JobState
    state_text: str
    exit_code: int | None
    exit_signal: int
    ended: float | None
    elapsed: float | None
    node_list: str
    launched: bool = True


def judge(
    observation: Observation,
    expectation: Expectation,
    *,
    log_tail: bytes = b"",
    signatures: Sequence[Signature] | None = None,
) -> Verdict:
    """Return the verdict on an attempt that *observation* allows.

    Final accounting beats what slurmctld remembers (squeue's row, with scontrol's exit code where sacct does not
    answer), which beats ``exit.json``, which beats accounting that still says RUNNING. A failed question, or a
    job known to neither squeue nor sacct, is never a verdict.

    :param observation: the newest one.
    :param expectation: what the stage is to achieve.
    :param log_tail: the last part of the job's log (some 64 KiB), searched for what the states do not show.
    :param signatures: what its lines mean, in order of precedence; the shipped catalogue when None.
    """
    iteration = (tracked_iteration(observation.tracker) or 0) if expectation.kind == "train" else None
    queue, accounting = observation.queue, observation.accounting
    job_id = (queue.job_id if queue else None) or (accounting.job_id if accounting else None)

    def waiting(outcome: Outcome, reason: str, state: JobState | None = None) -> Verdict:
        return Verdict(outcome, reason, state, None, iteration, job_id, queue.node_list if queue else "")

    if observation.unreachable is not None:
        return waiting(Outcome.UNKNOWN, f"the login node cannot be asked: {observation.unreachable.reason}")
    if not observation.queue_ok:
        return waiting(Outcome.UNKNOWN, f"squeue does not answer{_complaint(observation, 'squeue')}")
    if queue is not None and not queue.state.ended:
        if queue.state is JobState.UNKNOWN:
            return waiting(
                Outcome.UNKNOWN, "squeue shows a state that this version does not know", queue.state
            )
        held = "; it waits for 'scontrol release'" if queue.state.waits_for_a_person else ""
        if not held and (hint := needs_a_person(queue.reason)) is not None:
            held = f"; it does not start by itself: {hint}"
        why = f" ({queue.reason})" if queue.reason else ""
        return waiting(Outcome.ACTIVE, f"job {queue.job_id} is {queue.state.value}{why}{held}", queue.state)

    exit_record = observation.exit_record
    ending = _ending(observation, exit_record)
    if isinstance(ending, str):
        return waiting(Outcome.UNKNOWN, ending, accounting.state if accounting else None)
    achieved, shortfall = _achievement(observation, expectation, iteration)
    catalogue = shipped_signatures() if signatures is None else signatures
    if achieved and ending.state is JobState.NODE_FAIL and exit_record is not None and exit_record.ended_well:
        ending = _ending_by(exit_record)  # the node was lost before it could report to Slurm
    outcome, reason, finding = _weigh(ending, expectation, achieved, log_tail, catalogue)
    settles = _clean(ending) or expectation.announced
    unsettled = not achieved and settles and _age(observation, ending.ended) < SETTLE_S
    if unsettled and outcome in {Outcome.ROLLED_OVER, Outcome.FAILED}:
        return waiting(Outcome.UNKNOWN, f"the job has ended; {shortfall}, which may still show", ending.state)
    if not achieved and outcome in {Outcome.ROLLED_OVER, Outcome.FAILED} and shortfall:
        reason = f"{reason}; {shortfall}"
    if outcome is Outcome.DUPLICATE:
        job_id = observation.owner_job_id or job_id
    warning = None
    if outcome is Outcome.FINISHED and not _clean(ending):
        finding = find_signature(catalogue, log_tail, ending.state)
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


def _ending(observation: Observation, record: ExitRecord | None) -> _Ending | str:
    """Return how the job ended, or why that is not known.

    :param record: its ``exit.json``, None without a whole one.
    """
    queue, accounting = observation.queue, observation.accounting
    revoked = JobState.REVOKED in {accounting.state if accounting else None, queue.state if queue else None}
    if revoked and (accounting is None or accounting.state is JobState.REVOKED or not accounting.state.ended):
        # Not an end: another cluster of the federation has started the job, under the same id.
        if record is None:
            return f"another cluster of the federation has taken the job; it has left no {EXIT_RECORD} yet"
        return _ending_by(record)
    row = accounting if accounting is not None and accounting.is_final else queue
    launched = True
    if row is not None and row.state is JobState.CANCELLED:
        ran = row.ended - row.started if row.ended and row.started else 0.0
        ran = accounting.elapsed if accounting is not None and row is accounting else ran
        if record is not None and _relaunch_was_cancelled(row.started, ran, record):
            return _ending_by(record)
        at_once = record is None and ran <= RELAUNCH_S
        began = at_once and observation.owner_job_id == row.job_id
        # of a job that Slurm had put back into the queue, the nodes are those of its run before
        requeued = observation.controller is not None and observation.controller.restarts > 0
        by_slurm = at_once and not requeued and _was_cancelled_by_slurm(row, observation.owner_job_id)
        launched = not by_slurm
        if (began or not launched) and _age(observation, row.ended) < ACCOUNTING_LAG_S:
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
            launched,
        )
    if queue is not None:
        return _ending_in_queue(observation, queue, record, launched=launched)
    if observation.accounting_enabled:
        if not observation.accounting_ok:
            return f"the job has left the queue and sacct does not answer{_complaint(observation, 'sacct')}"
        if record is None:
            # A waiting task of an array that is cancelled leaves the array, and no trace (Slurm 22.05).
            if accounting is None and observation.siblings_queued and observation.owner_job_id is None:
                return _Ending("squeue", JobState.CANCELLED, "CANCELLED", None, 0, None, None, "")
            if accounting is None:
                return (
                    f"the job is in neither squeue nor sacct and has left no {EXIT_RECORD}: Slurm has not recorded it "
                    "yet, or its records were purged"
                )
            return f"the job has left the queue while sacct still has it as {accounting.state_text}"
        if _age(observation, record.ended) < ACCOUNTING_LAG_S:
            return "the job has left the queue; its accounting is not final yet"
        if accounting is not None and accounting.started and accounting.started > record.ended:
            return f"{EXIT_RECORD} is about an earlier run; sacct has the job as {accounting.state_text}"
    elif record is None:
        return f"the job has left the queue and left no {EXIT_RECORD}; the site keeps no accounting"
    return _ending_by(record)


def _ending_in_queue(
    observation: Observation, queue: QueueRow, record: ExitRecord | None, *, launched: bool
) -> _Ending | str:
    """Return the end of a job that squeue still lists, where sacct has no final record of it."""
    controller = observation.controller
    if controller is not None and not controller.state.ended:
        return (
            f"the queue had job {queue.job_id} as {queue.state.value}; it is {controller.state.value} again"
        )
    if controller is not None and record is not None and controller.restarts > record.restart_count:
        record = None  # of the run before Slurm put the job back
    # The exit code distinguishes a duplicate or a resumable stop from a crash: it is worth waiting for.
    undecided = queue.state is JobState.FAILED and record is None and controller is None
    if undecided and _age(observation, queue.ended) < ACCOUNTING_LAG_S:
        return f"the queue has job {queue.job_id} as {queue.state.value}; its exit code is not known yet"
    elapsed = queue.ended - queue.started if queue.ended and queue.started else None
    code, signal = (0 if queue.state is JobState.COMPLETED else None), 0
    if controller is not None:
        code, signal = controller.exit_code, controller.exit_signal
    elif record is not None:
        code = record.exit_code
    source = "squeue" if controller is None else "scontrol"
    return _Ending(
        source, queue.state, queue.state.value, code, signal, queue.ended, elapsed, queue.node_list, launched
    )


def _was_cancelled_by_slurm(row: AccountingRow | QueueRow, owner_job_id: str | None) -> bool:
    """Whether Slurm gave a job nodes and took it back because it could not be launched there.

    A controller that has lost its state gives an id of its last seconds to a new job, whose node then still runs the
    other one: slurmd cancels the new one, as root (``do not launch second copy``, Slurm 22.05), or the controller takes
    the end of the other for that of the new one, which still waits. Accounting names every person who cancels. The
    job's script has not begun, or it would own the attempt.
    """
    if owner_job_id is not None:
        return False
    if isinstance(row, AccountingRow) and cancelled_by(row.state_text) != "0":
        return row.state_text == JobState.CANCELLED.value
    return bool(row.node_list)


def _relaunch_was_cancelled(started: float | None, ran: float, record: ExitRecord) -> bool:
    """Whether what Slurm has cancelled is a second launch that never ran, while the job itself went on.

    A controller that died before it saved that a job was running takes it for pending when it comes back,
    starts it again, and cancels that when the node already has it (seen with Slurm 22.05 after SIGKILL of
    slurmctld). The job began before Slurm says that it started.
    """
    if ran == 0.0:  # or a person has cancelled a requeued job that waited
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
    """Return outcome, reason and the deciding log line of a job that has ended."""
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
        return *by_state, find_signature(signatures, log_tail, ending.state)
    if ending.exit_code == STEPPED_BACK_EXIT_CODE:
        return Outcome.RETRYABLE, f"{what}: it was queued ahead, stepped back, and did not run", None
    if ending.exit_code == UNWRITABLE_EXIT_CODE:
        return (
            Outcome.RETRYABLE,
            f"{what}: it could not write to its directory, and did not run",
            find_signature(signatures, log_tail, ending.state),
        )
    if ending.exit_code == RERUN_EXIT_CODE and train:
        return (
            Outcome.RETRYABLE,
            f"{what}: Megatron asks to be resumed to distinguish a transient fault from a lasting one",
            find_signature(signatures, log_tail, ending.state, generic=False),
        )
    finding = find_signature(signatures, log_tail, ending.state, generic=False)
    if finding is not None:
        if finding.signature.outcome is not Outcome.ROLLED_OVER:
            return finding.signature.outcome, _told(what, finding), finding
        if train:
            return Outcome.ROLLED_OVER, _told(what, finding), finding
    if train and _clean(ending):
        return Outcome.ROLLED_OVER, f"{what} before the end of training", None
    if train and (ending.exit_signal == _SIGTERM or ending.exit_code == 128 + _SIGTERM):
        return Outcome.ROLLED_OVER, f"{what}: stopped by SIGTERM", None
    finding = find_signature(signatures, log_tail, ending.state, generic=True)
    if finding is not None:
        return finding.signature.outcome, _told(what, finding), finding
    return Outcome.FAILED, what, None


def _weigh_state(ending: _Ending, what: str, train: bool) -> tuple[Outcome, str] | None:
    """Return outcome and reason where Slurm's state alone decides."""
    match ending.state:
        case JobState.OUT_OF_MEMORY:
            return Outcome.OUT_OF_MEMORY, f"{what}: the memory limit of a node was reached"
        case JobState.NODE_FAIL | JobState.PREEMPTED | JobState.BOOT_FAIL:
            return Outcome.RETRYABLE, what
        case JobState.CANCELLED:
            if not ending.launched:
                return Outcome.RETRYABLE, f"{what} by Slurm, which {_not_launched(ending)}"
            by = cancelled_by(ending.state_text)
            return Outcome.CANCELLED, f"{what}" + (f" (user id {by})" if by else "")
        case JobState.DEADLINE:
            return Outcome.FAILED, f"{what}: its --deadline passed"
        case JobState.TIMEOUT:
            return (Outcome.ROLLED_OVER if train else Outcome.FAILED), f"{what}: the time limit was reached"
        case _:
            return None


def _not_launched(ending: _Ending) -> str:
    return f"could not launch it on {ending.node_list}" if ending.node_list else "did not launch it"


def _told(what: str, finding: SignatureMatch) -> str:
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
    """Return whether the stage has achieved its aim, and otherwise what is missing."""
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


def _age(observation: Observation, ended: float | None) -> float:
    """Return the seconds since the end; infinite when it is unknown, or the clocks disagree on what has passed."""
    age = observation.time - ended if ended else math.inf
    return age if age > -CLOCK_SKEW_S else math.inf


def _complaint(observation: Observation, command: str) -> str:
    message = next((error for error in observation.errors if error.startswith(command)), "")
    return f": {message.removeprefix(f'{command}: ')}" if message else ""


def _failed_nodes(
    ending: _Ending, log_tail: bytes, finding: SignatureMatch | None, controller: ControllerRow | None
) -> tuple[str, ...]:
    """Return the nodes that failed: the one that Slurm or the log names, or the only one the job had.

    ``CANCELLED … DUE TO NODE FAILURE`` names the batch node, which is not the failed one.
    """
    if controller is not None and controller.failed_node:
        return (controller.failed_node,)
    named = tuple(dict.fromkeys(name.decode() for name in _NODE_FAILURE_LINE.findall(log_tail)))
    if named:
        return named[:_MOST_FAILED_NODES]
    if finding is not None and finding.node is not None:
        return (finding.node,)
    if ending.state in {JobState.NODE_FAIL, JobState.BOOT_FAIL} and _SINGLE_NODE.fullmatch(ending.node_list):
        return (ending.node_list,)
    return ()
