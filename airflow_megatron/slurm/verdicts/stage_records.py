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
from airflow_megatron.slurm.remote.transport import CommandResult, LoginRefusedError, TransportError
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
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

    from airflow_megatron.slurm.verdicts.verdict import Verdict


class RemoteWriteError(AirflowMegatronError):
    """The login node reported that a file could not be written."""


class OtherAccountError(LoginRefusedError):
    """Another account of the cluster runs the job, so that neither its records nor its place in the queue are known."""


@dataclass(frozen=True)
class AttemptState:
    """The recorded state of one attempt.

    :param number: number of the attempt, from 1.
    :param job_id: recorded id, None before or without a submission.
    :param owner_job_id: the job that ran (or runs) the attempt, None before its start.
    :param claimed: whether a submission holds a claim, so that its outcome must be queried again.
    :param exit: how the job script ended.
    :param verdict: verdict on this attempt, None before its end was judged.
    :param job_name: Slurm's name of the job if it differs from the attempt's name (a task of an array).
    :param chained: whether it waits, or waited, in the queue for the previous attempt (:mod:`.attempt_chain`).
    :param began_at: for a started chained attempt, the iteration in the tracker at its start, 0 without a tracker.
    :param array: the array whose submission has claimed the attempt, else None.
    :param ahead: the record of an attempt that was queued ahead (:mod:`.queue_ahead`), else None.
    :param decision: the target of the link ``ahead_decision``; None before the decision.
    :param account: the account that has submitted it, if this one cannot read its records; else empty.
    """

    number: int
    job_id: str | None
    owner_job_id: str | None
    claimed: bool
    exit: ExitRecord | None
    verdict: RecordedVerdict | None = None
    job_name: str | None = None
    chained: bool = False
    began_at: int | None = None
    array: Attempt | None = None
    ahead: str | None = None
    decision: str | None = None
    account: str = ""

    @property
    def judged(self) -> Verdict | None:
        """The complete verdict on the attempt, None without one."""
        return self.verdict.verdict if self.verdict is not None else None


@dataclass(frozen=True)
class StageRecord:
    """The recorded state of a stage.

    :param attempts: the attempts by ascending number.
    :param verdict: verdict on the stage's job, from its newest or an earlier attempt; None before the first verdict.
    :param submission: ``job.json`` of the newest attempt that has one, else None.
    :param tracker: Megatron's tracker file in the run directory, None without one.
    """

    attempts: tuple[AttemptState, ...]
    verdict: RecordedVerdict | None
    submission: JobRecord | None = None
    tracker: str | None = None

    @property
    def verdict_on_newest(self) -> RecordedVerdict | None:
        """The verdict on the stage's job if it refers to the newest attempt; None while that attempt is not judged."""
        found = self.verdict
        return found if found is not None and found.attempt == self.latest_attempt else None

    @property
    def latest(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def latest_attempt(self) -> int:
        """Number of the newest attempt, 0 if there is none."""
        return self.attempts[-1].number if self.attempts else 0

    @property
    def job_id(self) -> str | None:
        """Slurm id of the newest attempt."""
        return self.attempts[-1].job_id if self.attempts else None

    @property
    def job_name(self) -> str | None:
        """Slurm's name of the newest attempt's job if it differs from the attempt's name."""
        return self.attempts[-1].job_name if self.attempts else None

    @property
    def other_account(self) -> str:
        """The account that runs the newest attempt, if it is another one and the attempt has no verdict."""
        latest = self.latest
        return latest.account if latest is not None and self.verdict_on_newest is None else ""

    def was_replaced(self, number: int) -> bool:
        """Return whether the job was started anew after an attempt: the newest attempt is no restart of it.

        :param number: number of the attempt
        """
        return self.submission is not None and self.submission.first > number


def other_account_message(name: str, stage_dir: str, account: str) -> str:
    """Return the message about a job that another account runs.

    :param name: name of the job
    """
    return (
        f"{name}: the account {account} has submitted its newest attempt in {stage_dir}, whose records only that "
        "account can read; log in as that account, wait until the attempt has a verdict, or give this sweep another "
        "name or run_root"
    )


def stage_state_script(stage_dirs: Sequence[str]) -> str:
    """Return the remote script that reads the records in *stage_dirs*."""
    calls = "\n".join(f"am_stage {index} {quote_path(path)}" for index, path in enumerate(stage_dirs))
    return framed(
        f"{shell_file('exit_record')}\n{shell_file('other_account')}\n{shell_file('stage_state')}\n{calls}"
    )


def parse_stage_states(stage_dirs: Sequence[str], result: CommandResult) -> dict[str, StageRecord]:
    """Return the state of each of *stage_dirs*, empty for a stage that never ran.

    :raises TransportError: if the output is incomplete.
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
                # a directory whose name is not the number of an attempt is ignored
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
            RecordedVerdict.read(verdicts[path]),
            JobRecord.from_json(read_object(records[path])),
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
    number: int,
    files: Mapping[str, str],
    *,
    claimed: bool = False,
    array: Attempt | None = None,
    account: str = "",
) -> AttemptState:
    """Return the recorded state of an attempt.

    :param files: name below the attempt's directory → text, for existing files
    """
    job = SubmittedJob.from_record(files.get(JOB_ID_RECORD, ""))
    return AttemptState(
        account=account,
        number=number,
        job_id=job.job_id if job else None,
        owner_job_id=files.get(OWNER_RECORD, "").strip() or None,
        claimed=claimed,
        exit=ExitRecord.from_json(read_object(files.get(EXIT_RECORD))),
        verdict=RecordedVerdict.read(files.get(VERDICT_RECORD)),
        job_name=job.job_name if job else None,
        chained=CHAINED_RECORD in files,
        began_at=whole(files.get(BEGAN_AT_RECORD)),
        array=array,
        ahead=files.get(AHEAD_RECORD),
        decision=files.get(AHEAD_DECISION),
    )


def _attempt_state(number: int, values: Mapping[str, str]) -> AttemptState:
    files = {name: values[word] for word, name in _FILES.items() if word in values}
    return attempt_state(
        number,
        files,
        claimed="claimed" in values,
        array=_array(values.get("array", "")),
        account=values.get("account", ""),
    )


def _array(text: str) -> Attempt | None:
    """Return the array that a claim names, in the form NAME DIRECTORY."""
    name, _, directory = text.partition(" ")
    found = AttemptDir.from_path(directory)
    return Attempt(name, found.stage_dir, found.number) if found is not None else None


def write_record_script(path: str, content: Mapping[str, Any], remove: str | None = None) -> str:
    """Return the remote script that writes a JSON object to *path* by atomic rename; it creates the directory.

    :param remove: a directory to remove first
    """
    directory = path.rpartition("/")[0] or "/"
    text = json.dumps(content, indent=2, sort_keys=True)
    before = f"[ ! -d {quote_path(remove)} ] || rm -rf {quote_path(remove)}\n" if remove else ""
    return framed(
        f"{before}am_file={quote_path(path)}\n"
        f"am_write() {{\n"
        f'  mkdir -p {quote_path(directory)} && cat >"$am_file.$$" {here_document(text)}'
        f'  [ $? -eq 0 ] && mv -fT "$am_file.$$" "$am_file"\n'
        f"}}\n"
        f"am_error=$(am_write 2>&1) && printf 'written\\n' || {{\n"
        f'  rm -f "$am_file.$$"\n  printf \'failed %s\\n\' "$am_error"\n}}'
    )


def write_verdict_script(stage_dir: str, verdict: RecordedVerdict) -> str:
    """Return the remote script that writes a stage's ``verdict.json`` and removes the secrets of its attempt."""
    directory = StageDir(stage_dir)
    secrets = directory.attempt(verdict.attempt).secrets if verdict.attempt else None
    return write_record_script(directory.verdict, verdict.to_json(), remove=secrets)


def parse_written(result: CommandResult) -> None:
    """Check the output of a writing script.

    :raises RemoteWriteError: if the file could not be written; its previous content is unchanged.
    :raises TransportError: if the output is incomplete.
    """
    answer = unframed(result)
    if answer[:1] != ["written"]:
        raise RemoteWriteError("\n".join(answer).removeprefix("failed").strip() or "no reason given")
