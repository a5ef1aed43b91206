"""Records of stages on the cluster: one remote command reads any number of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.slurm.remote.attempt import Attempt
from airflow_megatron.slurm.remote.framing import framed, here_document, unframed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.records import ExitRecord, JobRecord, SubmittedJob, read_object
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.spec.layout.run_layout import (
    AHEAD_DECISION,
    AHEAD_RECORD,
    BEGAN_AT_RECORD,
    CHAINED_RECORD,
    EXIT_RECORD,
    JOB_ID_RECORD,
    OWNER_RECORD,
    VERDICT_RECORD,
    AttemptDir,
    StageDir,
)
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RemoteWriteError(AirflowMegatronError):
    """The login node answered that a file could not be written."""


@dataclass(frozen=True)
class AttemptState:
    """What one attempt left behind.

    :param number: from 1.
    :param job_id: recorded id, None before or without a submission.
    :param owner_job_id: the job that ran (or runs) it, None before it started.
    :param claimed: a submission was begun and not given back: its outcome has to be asked for again.
    :param exit: how the job script ended.
    :param verdict: its own ``verdict.json``, None before its end was judged.
    :param job_name: Slurm's name of the job where it is not the attempt's own (a task of an array).
    :param chained: it waits, or waited, in the queue for the attempt before (:mod:`.attempt_chain`).
    :param began_at: of a chained attempt that has started: the iteration in the tracker at that moment, 0 without one.
    :param array: the array whose submission has claimed the attempt, else None.
    :param ahead: it was queued behind the stage before: the record of it (:mod:`.queue_ahead`), else None.
    :param decision: what became of that, as the link ``ahead_decision`` has it; None before.
    """

    number: int
    job_id: str | None
    owner_job_id: str | None
    claimed: bool
    exit: ExitRecord | None
    verdict: dict[str, Any] | None = None
    job_name: str | None = None
    chained: bool = False
    began_at: int | None = None
    array: Attempt | None = None
    ahead: str | None = None
    decision: str | None = None


@dataclass(frozen=True)
class StageRecord:
    """What is recorded for a stage.

    :param attempts: by number, ascending.
    :param verdict: ``verdict.json``, None before the first.
    :param record: ``job.json`` of the newest attempt that has one.
    :param tracker: Megatron's tracker file in the run directory, None without one.
    """

    attempts: tuple[AttemptState, ...]
    verdict: dict[str, Any] | None
    record: dict[str, Any] | None = None
    tracker: str | None = None

    @property
    def submission(self) -> JobRecord | None:
        """What the newest attempt was submitted as, None where that is not known."""
        return JobRecord.from_json(self.record)

    @property
    def latest(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def latest_attempt(self) -> int:
        """Number of the newest attempt, 0 when there is none."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def job_id(self) -> str | None:
        """Slurm id of the newest attempt."""
        return self.attempts[-1].job_id if self.attempts else None

    @property
    def job_name(self) -> str | None:
        """Slurm's name of the newest attempt's job where it is not the attempt's own."""
        return self.attempts[-1].job_name if self.attempts else None


def stage_state_script(stage_dirs: Sequence[str]) -> str:
    """Return the remote script that reads what is recorded in *stage_dirs*."""
    calls = "\n".join(f"am_stage {index} {quote_path(path)}" for index, path in enumerate(stage_dirs))
    return framed(f"{shell_file('stage_state')}\n{calls}")


def parse_stage_states(stage_dirs: Sequence[str], result: CommandResult) -> dict[str, StageRecord]:
    """Return the state of each of *stage_dirs*, empty for a stage that never ran.

    :raises TransportError: if the answer is not whole.
    """
    attempts: dict[str, dict[int, dict[str, str]]] = {path: {} for path in stage_dirs}
    verdicts: dict[str, str] = dict.fromkeys(stage_dirs, "")
    records: dict[str, str] = dict.fromkeys(stage_dirs, "")
    trackers: dict[str, str] = {}
    stage, values = "", dict[str, str]()
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        try:
            if word == "stage":
                stage = stage_dirs[int(rest)]
                continue
            if word == "attempt" and stage:
                # a directory whose name is no number of an attempt is passed over
                number = whole(rest)
                values = attempts[stage].setdefault(number, {}) if number is not None else {}
                continue
        except (ValueError, IndexError):
            raise TransportError(f"unexpected line in a stage's state: {line!r}") from None
        if word == "verdict" and stage:
            verdicts[stage] += rest + "\n"
        elif word == "record" and stage:
            records[stage] += rest + "\n"
        elif word == "tracker" and stage:
            trackers[stage] = rest
        elif stage:
            values[word] = values.get(word, "") + rest
    return {
        path: StageRecord(
            tuple(_attempt_state(number, found) for number, found in sorted(attempts[path].items())),
            read_object(verdicts[path]),
            read_object(records[path]),
            trackers.get(path),
        )
        for path in stage_dirs
    }


_FILES: Final = {
    "job_id": JOB_ID_RECORD,
    "owner": OWNER_RECORD,
    "exit": EXIT_RECORD,
    "judged": VERDICT_RECORD,
    "chained": CHAINED_RECORD,
    "began_at": BEGAN_AT_RECORD,
    "ahead": AHEAD_RECORD,
    "decision": AHEAD_DECISION,
}
"""Word of ``shell/stage_state.sh`` → the file whose text follows it."""


def attempt_state(
    number: int, files: Mapping[str, str], *, claimed: bool = False, array: Attempt | None = None
) -> AttemptState:
    """Return what an attempt left behind.

    :param files: name below the attempt's directory → text, of those that are there
    """
    job = SubmittedJob.from_record(files.get(JOB_ID_RECORD, ""))
    return AttemptState(
        number=number,
        job_id=job.job_id if job else None,
        owner_job_id=files.get(OWNER_RECORD, "").strip() or None,
        claimed=claimed,
        exit=ExitRecord.from_json(read_object(files.get(EXIT_RECORD))),
        verdict=read_object(files.get(VERDICT_RECORD)),
        job_name=job.job_name if job else None,
        chained=CHAINED_RECORD in files,
        began_at=whole(files.get(BEGAN_AT_RECORD)),
        array=array,
        ahead=files.get(AHEAD_RECORD),
        decision=files.get(AHEAD_DECISION),
    )


def _attempt_state(number: int, values: Mapping[str, str]) -> AttemptState:
    files = {name: values[word] for word, name in _FILES.items() if word in values}
    return attempt_state(number, files, claimed="claimed" in values, array=_array(values.get("array", "")))


def _array(text: str) -> Attempt | None:
    """Return the array that a claim speaks of, in the form NAME DIRECTORY."""
    name, _, directory = text.partition(" ")
    found = AttemptDir.from_path(directory)
    return Attempt(name, found.stage_dir, found.number) if found is not None else None


def write_record_script(path: str, content: Mapping[str, Any], remove: str | None = None) -> str:
    """Return the remote script that writes a JSON object to *path* by atomic rename, making its directory.

    :param remove: a folder that is removed before
    """
    directory = path.rpartition("/")[0] or "/"
    text = json.dumps(content, indent=2, sort_keys=True)
    before = f"[ ! -d {quote_path(remove)} ] || rm -rf {quote_path(remove)}\n" if remove else ""
    return framed(
        f"{before}am_file={quote_path(path)}\n"
        f"am_write() {{\n"
        f'  mkdir -p {quote_path(directory)} && cat >"$am_file.$$" {here_document(text)}'
        f'  [ $? -eq 0 ] && mv -f "$am_file.$$" "$am_file"\n'
        f"}}\n"
        f"am_error=$(am_write 2>&1) && printf 'written\\n' || {{\n"
        f'  rm -f "$am_file.$$"\n  printf \'failed %s\\n\' "$am_error"\n}}'
    )


def write_verdict_script(stage_dir: str, verdict: Mapping[str, Any]) -> str:
    """Return the remote script that writes a stage's ``verdict.json`` and removes the secrets of its attempt."""
    directory, attempt = StageDir(stage_dir), verdict.get("attempt")
    secrets = directory.attempt(attempt).secrets if attempt else None
    return write_record_script(directory.verdict, verdict, remove=secrets)


def parse_written(result: CommandResult) -> None:
    """Check the answer of a writing script.

    :raises RemoteWriteError: if the file could not be written; it is as it was before.
    :raises TransportError: if the answer is not whole.
    """
    answer = unframed(result)
    if answer[:1] != ["written"]:
        raise RemoteWriteError("\n".join(answer).removeprefix("failed").strip() or "no reason given")
