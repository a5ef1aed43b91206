"""One poll of a cluster: the remote script for any number of watches, and the parser of its output.

The script calls squeue once (``-t all`` includes the final state of jobs that ended within Slurm's MinJobAge) and sacct
only for watched jobs that have left the queue or are listed there as ended. It reads the one-line files with shell
built-ins (no process per job), lists all checkpoint directories with one ``find``, and sends new log bytes as one
base64 stream.
"""

from __future__ import annotations

import base64
import contextlib
import re
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.checkpoint_listing import (
    CHECKPOINT_BYTES,
    CHECKPOINT_BYTES_PER_POLL,
    CheckpointFiles,
)
from airflow_megatron.slurm.remote.framing import framed, here_document, unframed
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands, slurm_functions
from airflow_megatron.slurm.remote.quoting import quote, quote_glob
from airflow_megatron.slurm.remote.records import ExitRecord, read_object
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.states.controller_rows import parse_controller_row
from airflow_megatron.slurm.states.job_components import with_whole_jobs
from airflow_megatron.slurm.states.job_ids import job_ids
from airflow_megatron.slurm.states.job_states import JobState, parse_state
from airflow_megatron.slurm.states.observation import (
    AccountingRow,
    CommandAnswer,
    ControllerRow,
    Observation,
    QueueRow,
    Unreachable,
    Watch,
)
from airflow_megatron.spec.layout.run_layout import exit_record_of, owner_record_of, tracker_of
from airflow_megatron.spec.trust.plain_text import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

LOG_BYTES_PER_JOB = 64 * 1024
LOG_BYTES_PER_POLL = 4 * 1024 * 1024
ACCOUNTING_CHUNK = 500
"""Ids in one sacct call: slurmdbd answers long lists slowly (Parsl issue 3814)."""

CONTROLLER_CALLS = 100
"""Maximum number of scontrol calls in one poll; each is a request to slurmctld, which sites limit per user."""

LOG_SECONDS = 2
"""Time limit for reading one log, in seconds; the rest of the poll waits for it."""

SLOW_LOGS = 2
"""After this number of logs that exceeded the limit, the next poll reads the remaining logs."""

COMMAND_SECONDS = 30
"""Time limit for the command of a condition, in seconds; the rest of the poll waits for it."""

GLOB_SECONDS = 10
"""Time limit for expanding one path pattern, in seconds; a pattern may match the whole file system."""

GLOB_BYTES = 1 << 20
"""Maximum length of the paths that match one pattern: about 10,000 paths."""

GLOB_BYTES_PER_POLL = 8 << 20
"""Maximum length of the matching paths of a poll; the patterns with the longest answers are left out."""

ONE_LINER_SECONDS = 10
"""Time limit for reading all one-line files, in seconds (in ``poll.sh``); a job may replace one by a pipe."""

CHECKPOINT_SECONDS = 10
"""Time limit for listing checkpoints, in seconds; a directory may hold millions of files."""


_QUEUE_FORMAT = "%i|%T|%V|%S|%e|%D|%N|%r|%j"
_ACCOUNTING_FORMAT = (
    "JobID,JobIDRaw,State,ExitCode,Submit,Start,End,ElapsedRaw,NNodes,NodeList,Reason,JobName"
)
_ENDED_STATES = "|".join(state.value for state in JobState if state.ended)
_COMMAND_NOT_FOUND = "127"
"""Exit status of the shell for a missing command; some sites install no sacct on their login nodes."""
_MOST_COMPLAINTS = 20
_LONGEST_COMPLAINT = 500
_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_STREAM_MARK = re.compile(rb"M ([a-z0-9.]{1,64})\n")
_STREAM_SIZE = re.compile(rb"F (\d{1,9}) (\d{1,18}) (\d{1,18})\n")


@dataclass(frozen=True)
class _Plan:
    """The queries of one poll; queries shared by several watches occur once."""

    job_ids: tuple[str, ...]
    one_liners: tuple[str, ...]
    checkpoint_dirs: Mapping[str, int]
    streams: tuple[tuple[str, int], ...]
    checks: tuple[str, ...]
    globs: tuple[str, ...]
    commands: tuple[str, ...]

    @classmethod
    def of(cls, watches: Sequence[Watch]) -> _Plan:
        logs = [(watch.log_file, watch.log_offset) for watch in watches if watch.log_file]
        small = [(path, 0) for watch in watches for path in watch.read_files]
        return cls(
            job_ids=_unique(watch.job_id for watch in watches),
            one_liners=_unique(path for watch in watches for path in _one_liners(watch)),
            checkpoint_dirs=_checkpoint_dirs(watches),
            streams=tuple(dict.fromkeys((*small, *logs))),
            checks=_unique(path for watch in watches for path in watch.check_files),
            globs=_unique(pattern for watch in watches for pattern in watch.globs),
            commands=_unique(command for watch in watches for command in watch.commands),
        )


def _checkpoint_dirs(watches: Sequence[Watch]) -> dict[str, int]:
    """Return directory → the smallest ``checkpoint_from`` of its watches."""
    found: dict[str, int] = {}
    for watch in watches:
        if watch.checkpoint_dir:
            directory = watch.checkpoint_dir.rstrip("/")
            found[directory] = min(watch.checkpoint_from, found.get(directory, watch.checkpoint_from))
    return found


def _unique(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for value in values if value is not None))


def _one_liners(watch: Watch) -> tuple[str, ...]:
    files: tuple[str, ...] = ()
    if watch.attempt_dir is not None:
        files = (exit_record_of(watch.attempt_dir), owner_record_of(watch.attempt_dir))
    if watch.checkpoint_dir is not None:
        files = (*files, tracker_of(watch.checkpoint_dir))
    return files


def poll_script(watches: Sequence[Watch], commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that collects the observations of all *watches*.

    :param watches: any number; equal queries are made once. :func:`parse_poll` needs the same watches in the
        same order.
    :param commands: how Slurm's commands are called on this cluster.
    """
    plan = _Plan.of(watches)
    root = _common_root(
        (*plan.one_liners, *plan.checkpoint_dirs, *plan.checks, *(path for path, _ in plan.streams))
    )

    def words(paths: Iterable[str]) -> str:
        return " ".join(quote(path.removeprefix(root)) for path in paths)

    parts = [
        f"am_root={quote(root)}\nexport am_root",
        slurm_functions(commands),
        shell_file("exit_record"),
        shell_file("own_name"),
        shell_file("poll"),
        "printf 'now %s\\n' \"$(date +%s.%N)\"",
    ]
    if any(watch.job_id or watch.job_name or watch.whole_queue for watch in watches):
        parts.append(f"am_queue {quote(_QUEUE_FORMAT)}")
    if plan.job_ids:
        ids = " ".join(plan.job_ids)
        parts.append(
            f"am_accounting {_ACCOUNTING_FORMAT} {ACCOUNTING_CHUNK} {quote(_ENDED_STATES)} {CONTROLLER_CALLS} {ids}"
        )
    if plan.one_liners:
        parts.append(f"am_one_liners {words(plan.one_liners)}")
    if plan.checkpoint_dirs:
        asked = (f"{first} {words([path])}" for path, first in plan.checkpoint_dirs.items())
        limits = f"{CHECKPOINT_SECONDS} {CHECKPOINT_BYTES} {CHECKPOINT_BYTES_PER_POLL}"
        parts.append(f"am_checkpoints {limits} {' '.join(asked)}")
    if plan.checks:
        parts.append(f"am_checks {words(plan.checks)}")
    if plan.streams:
        listing = "\n".join(f"{offset}\t{path.removeprefix(root)}" for path, offset in plan.streams)
        parts.append(f"am_stream_list() {{\n  cat {here_document(listing)}}}")
        parts.append(f"am_streams {LOG_BYTES_PER_JOB} {LOG_BYTES_PER_POLL} {LOG_SECONDS} {SLOW_LOGS}")
    if plan.globs:
        texts = " ".join(quote(quote_glob(pattern)) for pattern in plan.globs)
        parts.append(f"am_globs {GLOB_SECONDS} {GLOB_BYTES} {GLOB_BYTES_PER_POLL} {texts}")
    if plan.commands:
        texts = " ".join(quote(command) for command in plan.commands)
        parts.append(f"am_commands {COMMAND_SECONDS} {texts}")
    return framed("\n".join(parts))


def _common_root(paths: Sequence[str]) -> str:
    """Return the common prefix of all paths, which is sent once."""
    if len(paths) < 2:
        return ""
    first, last = min(paths), max(paths)
    length = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[:length]


def parse_whole_poll(watches: Sequence[Watch], result: CommandResult) -> dict[str, Observation]:
    """Return the result of :func:`parse_poll`, for callers that need every observation to be complete.

    :raises TransportError: if the output is incomplete, or a checkpoint directory could not be listed in time.
    """
    found = parse_poll(watches, result)
    for observation in found.values():
        if observation.unreachable is not None:
            raise TransportError(observation.unreachable.reason)
    return found


@dataclass
class _Answer:
    """The parsed output of the script, by section."""

    time: float
    own_names: dict[str, str]
    queue: dict[str, QueueRow]
    queue_by_name: dict[str, QueueRow]
    queued_arrays: set[str]
    queue_ok: bool
    accounting: dict[str, AccountingRow]
    controller: dict[str, ControllerRow]
    accounting_ok: bool
    accounting_enabled: bool
    one_liners: dict[int, str]
    one_liners_cut: bool
    checkpoints: CheckpointFiles
    existing: set[int]
    stream: bytes
    matches: dict[int, list[str]]
    expanded: set[int]
    answers: dict[int, CommandAnswer]
    errors: list[str]


def parse_poll(watches: Sequence[Watch], result: CommandResult) -> dict[str, Observation]:
    """Return the observation of each watch, by the watch's key.

    :param watches: the arguments of :func:`poll_script`, in the same order.
    :raises TransportError: if the output is incomplete.
    """
    plan = _Plan.of(watches)
    try:
        answer = _read_answer(
            unframed(result),
            lists_checkpoints=bool(plan.checkpoint_dirs),
            arrays=None
            if any(watch.whole_queue for watch in watches)
            else {job_id.partition("_")[0] for job_id in plan.job_ids},
        )
    except (ValueError, KeyError) as error:
        raise TransportError(f"the poll's answer is damaged: {error}") from error
    lines = {path: answer.one_liners[i] for i, path in enumerate(plan.one_liners) if i in answer.one_liners}
    streams = _read_streams(answer.stream, plan.streams)
    existing = {path: i in answer.existing for i, path in enumerate(plan.checks)}
    matches = {
        pattern: tuple(answer.matches.get(i, ()))
        for i, pattern in enumerate(plan.globs)
        if i in answer.expanded
    }
    by_command = {
        command: answer.answers[i] for i, command in enumerate(plan.commands) if i in answer.answers
    }
    left_out = frozenset(result.left_out)
    read_to = max(answer.one_liners, default=-1) if answer.one_liners_cut else len(plan.one_liners)
    unread = frozenset(plan.one_liners[read_to + 1 :])
    found: dict[str, Observation] = {}
    for watch in watches:
        try:
            found[watch.key] = _observe(watch, answer, lines, streams, existing, matches, by_command)
            if closed := left_out.intersection(_one_liners(watch)):
                found[watch.key] = _unread(watch, answer, f"the connection has no access to {min(closed)}")
            elif not unread.isdisjoint(_one_liners(watch)):
                reason = f"its records were not read within {ONE_LINER_SECONDS} s: a file of a job blocks its readers"
                found[watch.key] = _unread(watch, answer, reason)
        except Exception as error:  # unreadable files of one job must not affect the watches of other jobs
            complaint = (
                f"the files of job {watch.job_id or watch.job_name or watch.key} cannot be read: {error!r}"
            )
            found[watch.key] = Observation(
                time=answer.time, log_offset=watch.log_offset, errors=(complaint[:_LONGEST_COMPLAINT],)
            )
    return found


def _observe(
    watch: Watch,
    answer: _Answer,
    lines: Mapping[str, str],
    streams: Mapping[tuple[str, int], tuple[int, bytes]],
    existing: Mapping[str, bool],
    matches: Mapping[str, tuple[str, ...]],
    by_command: Mapping[str, CommandAnswer],
) -> Observation:
    queue = answer.queue.get(watch.job_id) if watch.job_id else answer.queue_by_name.get(watch.job_name or "")
    accounting = answer.accounting.get(watch.job_id or (queue.job_id if queue else ""))
    controller = answer.controller.get(watch.job_id or (queue.job_id if queue else ""))
    other_name = ""
    if watch.job_name is not None:
        # Slurm reuses job ids after MaxJobId: a row with another name belongs to another job.
        if queue is not None and queue.name != watch.job_name:
            other_name = shown(queue.name[:_LONGEST_COMPLAINT])
            queue = None
        names = (watch.job_name, queue.renamed if queue and queue.renamed else watch.job_name)
        accounting = accounting if accounting and accounting.name in names else None
        controller = controller if controller and controller.name in names else None
    queue_active = queue is not None and not queue.state.ended
    array, task, _ = (watch.job_id or "").partition("_")
    if watch.checkpoint_dir is not None and watch.checkpoint_dir.rstrip("/") in answer.checkpoints.slow:
        reason = (
            f"{watch.checkpoint_dir} cannot be listed within {CHECKPOINT_SECONDS} s and "
            f"{CHECKPOINT_BYTES >> 20} MiB: too many files are in it"
        )
        return _unread(watch, answer, reason)
    observation = Observation(
        time=answer.time,
        queue=queue,
        other_name=other_name,
        queue_ok=answer.queue_ok,
        user_jobs=answer.queue if watch.whole_queue else {},
        siblings_queued=bool(task) and array in answer.queued_arrays,
        accounting=accounting,
        accounting_ok=answer.queue_ok and (queue_active or answer.accounting_ok),
        accounting_enabled=answer.accounting_enabled,
        controller=controller,
        files={path: _text(streams.get((path, 0))) for path in watch.read_files},
        existing={path: existing[path] for path in watch.check_files},
        matches={pattern: matches[pattern] for pattern in watch.globs if pattern in matches},
        answers={command: by_command[command] for command in watch.commands if command in by_command},
        log_offset=watch.log_offset,
        attempt_watched=watch.attempt_dir is not None,
        errors=(*answer.errors, *_unexpanded(watch.globs, matches)),
    )
    if watch.attempt_dir is not None:
        observation = replace(
            observation,
            exit=_exit_record(lines.get(exit_record_of(watch.attempt_dir)), watch.job_id),
            owner_job_id=lines.get(owner_record_of(watch.attempt_dir)) or None,
        )
    if watch.checkpoint_dir is not None:
        observation = replace(
            observation,
            tracker=lines.get(tracker_of(watch.checkpoint_dir)),
            checkpoint_files=answer.checkpoints.found.get(watch.checkpoint_dir.rstrip("/"), {}),
        )
    if watch.log_file is not None and (found := streams.get((watch.log_file, watch.log_offset))) is not None:
        observation = replace(observation, log_size=found[0], log_chunk=found[1])
    return observation


def _unread(watch: Watch, answer: _Answer, reason: str) -> Observation:
    unknown = Unreachable(answer.time, shown(reason), 1)
    return Observation(time=answer.time, log_offset=watch.log_offset, unreachable=unknown)


def _unexpanded(globs: Sequence[str], matches: Mapping[str, object]) -> list[str]:
    slow = [shown(pattern)[:_LONGEST_COMPLAINT] for pattern in globs if pattern not in matches]
    return [
        f"{pattern} cannot be expanded within {GLOB_SECONDS} s and {GLOB_BYTES >> 20} MiB of paths; "
        "name fewer files"
        for pattern in slow
    ]


def _exit_record(text: str | None, job_id: str | None) -> ExitRecord | None:
    """Return ``exit.json`` unless another job wrote it: the attempt's owner, when a duplicate job is watched."""
    record = ExitRecord.from_json(read_object(text))
    if record is None or job_id is None or "+" in job_id:
        return record
    return record if record.job_id in ("", job_id) else None


def _text(found: tuple[int, bytes] | None) -> str | None:
    if found is None or (found[0] and not found[1]):  # the file is missing, or was not read in this poll
        return None
    return found[1].decode(errors="replace")


def _read_answer(lines: Sequence[str], *, lists_checkpoints: bool, arrays: Collection[str] | None) -> _Answer:
    answer = _Answer(
        0.0,
        {},
        {},
        {},
        set(),
        False,
        {},
        {},
        True,
        True,
        {},
        False,
        CheckpointFiles(),
        set(),
        b"",
        {},
        set(),
        {},
        [],
    )
    queue_lines: list[str] = []
    accounting_lines: list[str] = []
    other_lines: list[str] = []
    controller_lines: list[str] = []
    stream_lines: list[str] = []
    checkpoints = answer.checkpoints
    for line in lines:
        word, _, rest = line.partition(" ")
        match word:
            case "now":
                answer.time = _number(rest) or 0.0
            case "K":
                job_id, _, name = rest.partition(" ")
                answer.own_names[job_id] = name
            case "Q":
                queue_lines.append(rest)
            case "q" | "a":
                other_lines.append(rest)
            case "queue_status":
                _read_queue(answer, queue_lines, other_lines, arrays, succeeded=rest == "0")
                other_lines = []
            case "A":
                accounting_lines.append(rest)
            case "accounting_status":
                _read_accounting(answer, accounting_lines, other_lines, status=rest)
                accounting_lines, other_lines = [], []
            case "one_liners_cut":
                answer.one_liners_cut = True
            case "J":
                controller_lines.append(rest)
            case "S":
                stream_lines.append(rest)
            case _:
                # any other or incomplete line comes from a background process of the login shell
                with contextlib.suppress(ValueError):
                    _read_line(answer, word, rest)
                    checkpoints.take(word, rest)
    _read_controller(answer, controller_lines)
    if lists_checkpoints:
        checkpoints.check_whole()
    if not answer.time:
        raise ValueError("the time is missing; another process printed into the output")
    answer.stream = base64.b64decode("".join(stream_lines), validate=True)
    return answer


def _read_line(answer: _Answer, word: str, rest: str) -> None:
    """Parse one line of the answer to an indexed query.

    :raises ValueError: for a line that the script did not print.
    """
    index, _, text = rest.partition(" ")
    match word:
        case "L":
            answer.one_liners[_index(index)] = text.strip()
        case "E":
            answer.existing.add(_index(index))
        case "G":
            answer.matches.setdefault(_index(index), []).append(text)
        case "g":
            answer.expanded.add(_index(index))
        case "R":
            code, _, output = text.partition(" ")
            printed = base64.b64decode(output.strip(), validate=True).decode(errors="replace")
            answer.answers[_index(index)] = CommandAnswer(_index(code), printed)


def _complaints(command: str, lines: Iterable[str]) -> list[str]:
    other_lines = [shown(line[:_LONGEST_COMPLAINT]) for line in lines if line.strip()]
    return [f"{command}: {line}" for line in other_lines[:_MOST_COMPLAINTS]]


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{text!r} is not an index")
    return int(text)


def _read_queue(
    answer: _Answer,
    lines: Sequence[str],
    other_lines: Sequence[str],
    arrays: Collection[str] | None,
    *,
    succeeded: bool,
) -> None:
    """Read the rows of squeue.

    :param other_lines: lines that are not rows: errors, or the rest of a job name with a line break
    :param arrays: ids of arrays whose pending tasks are wanted, None for all; a job may submit one of 4,000,000 tasks
    """
    rows = [parse_queue_row(line) for line in lines] if succeeded else []
    other_lines = [*(line for line, row in zip_longest(lines, rows) if row is None), *other_lines]
    answer.errors += _complaints("squeue", other_lines)
    if not succeeded:
        return
    answer.queue_ok = True
    renamed = (_with_own_name(row, answer.own_names.get(row.job_id)) for row in rows if row is not None)
    for row in with_whole_jobs(list(renamed)):
        array, task, _ = row.job_id.partition("_")
        if task:
            answer.queued_arrays.add(array)
        for job_id in job_ids(row.job_id) if arrays is None or array in arrays else (row.job_id,):
            known = answer.queue.get(job_id)
            # a task of an array gets its own row when it stops being pending
            if known is None or known.state.ended >= row.state.ended:
                answer.queue[job_id] = row if job_id == row.job_id else replace(row, job_id=job_id)
        known = answer.queue_by_name.get(row.name)
        if known is None or known.state.ended >= row.state.ended:  # an active job counts before an ended one
            answer.queue_by_name[row.name] = row


def _with_own_name(row: QueueRow, own: str | None) -> QueueRow:
    """Return the row of a job that a user has renamed under the name with which it was submitted."""
    return row if own is None else replace(row, name=own, renamed=row.name)


def parse_queue_row(line: str) -> QueueRow | None:
    """Parse one line of squeue's output; return None for other lines (a warning, a ``CLUSTER:`` header)."""
    cells = line.split("|", 8)
    if len(cells) != 9 or not cells[0].strip()[:1].isdigit():
        return None
    job_id, state, submitted, started, ended, nodes, node_list, reason, name = (
        cell.strip() for cell in cells
    )
    return QueueRow(
        job_id=job_id,
        name=name,
        state=parse_state(state),
        reason="" if reason == "None" else reason,
        node_list=node_list,
        node_count=_integer(nodes),
        submitted=_number(submitted),
        started=_number(started),
        ended=_number(ended),
    )


def _read_accounting(
    answer: _Answer, lines: Sequence[str], other_lines: Sequence[str], *, status: str
) -> None:
    """Read the rows of sacct.

    :param other_lines: lines that are not rows: errors, or the rest of a job name with a line break
    """
    rows = [row for line in lines if (row := parse_accounting_row(line)) is not None]
    disabled = not rows and any("accounting storage is disabled" in line for line in (*lines, *other_lines))
    if status != "0":
        answer.accounting_ok = False
        answer.accounting_enabled &= not disabled and status != _COMMAND_NOT_FOUND
        answer.errors += _complaints("sacct", (*lines, *other_lines))
        return
    if disabled:  # older releases print this message and exit with status 0
        answer.accounting_ok = answer.accounting_enabled = False
    for row in with_whole_jobs(rows):
        for job_id in job_ids(row.job_id):
            known = answer.accounting.get(job_id)
            # each cluster of a federation keeps a record; only the cluster that ran the job records its end
            if known is None or known.state is JobState.REVOKED or row.state is not JobState.REVOKED:
                answer.accounting[job_id] = row if job_id == row.job_id else replace(row, job_id=job_id)


def _read_controller(answer: _Answer, lines: Sequence[str]) -> None:
    rows: list[ControllerRow] = []
    for line in lines:
        row = parse_controller_row(line)
        if row is not None:
            rows.append(row)
        elif "error" in line and "Invalid job id" not in line:
            answer.errors.append(f"scontrol: {line.strip()}")
    # Slurm prints the line breaks of a comment, so a job can imitate the row of another one: then neither row counts
    different: set[str] = set()
    for row in with_whole_jobs(rows):
        if answer.controller.setdefault(row.job_id, row) != row:
            different.add(row.job_id)
    for job_id in different:
        del answer.controller[job_id]


def parse_accounting_row(line: str) -> AccountingRow | None:
    """Parse one line of sacct's output; return None for other lines (a step, a warning)."""
    cells = line.split("|", 11)
    if len(cells) != 12 or not cells[0].strip()[:1].isdigit() or "." in cells[0]:
        return None
    job_id, _, state, exit_code, submitted, started, ended, elapsed, nodes, node_list, reason, name = (
        cell.strip() for cell in cells
    )
    code, _, signal = exit_code.partition(":")
    return AccountingRow(
        job_id=job_id,
        name=name,
        state=parse_state(state),
        state_text=state,
        exit_code=_integer(code),
        exit_signal=_integer(signal),
        node_list="" if node_list == "None assigned" else node_list,
        node_count=_integer(nodes),
        submitted=_number(submitted),
        started=_number(started),
        ended=_number(ended),
        elapsed=_number(elapsed) or 0.0,
        reason="" if reason == "None" else reason,
    )


def _number(text: str) -> float | None:
    """Return Unix seconds; None for ``N/A``, ``Unknown``, ``None`` and an unset 0."""
    return float(text) or None if _DECIMAL.fullmatch(text) else None


def _integer(text: str) -> int:
    return int(text) if _DECIMAL.fullmatch(text) and "." not in text else 0


def _read_streams(
    data: bytes, streams: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, bytes]]:
    """Return (path, offset) → (size, bytes) of every readable file.

    The stream holds all sizes first, then the new bytes of each file, each followed by ``E`` (complete) or ``X``
    (incomplete), the index of the file and a random mark that no log can contain. A file with a size but without bytes
    is read by the next poll.
    """
    head = _STREAM_MARK.match(data)
    if head is None:
        return {}
    mark = head[1]
    found: dict[tuple[str, int], tuple[int, bytes]] = {}
    wanted: list[tuple[int, int]] = []
    at = head.end()
    while (line := _STREAM_SIZE.match(data, at)) is not None:
        index, size, length = map(int, line.groups())
        if index >= len(streams):
            return found
        found[streams[index]] = (size, b"")
        if length:
            wanted.append((index, length))
        at = line.end()
    at += len(b"=\n")
    for index, length in wanted:
        whole, failed = (b"\n%s %d %s\n" % (word, index, mark) for word in (b"E", b"X"))
        latest = at + length + len(whole)
        if data.startswith(whole, at + length):
            found[streams[index]] = (found[streams[index]][0], data[at : at + length])
            at = latest
        elif (cut := data.find(failed, at, latest)) >= 0:
            del found[streams[index]]
            at = cut + len(failed)
        elif (cut := data.find(whole, at, latest)) >= 0:  # the file was truncated after its size was read
            at = cut + len(whole)
    return found
