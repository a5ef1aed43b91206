"""Collect the content of run directories with one remote command, and parse its output.

The command writes sections: a line that starts with ``@`` opens a section, and each line of its content starts with a
space, so content cannot be mistaken for a section. The output is compressed and sent as base64 between two marker
lines: this preserves all bytes, separates the output from login banners, and makes truncation detectable (no end
marker, or a failed CRC). Logs are filtered and thinned on the cluster: of a log with a million iterations, a few
thousand lines are sent.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.megatron.logs.line_lengths import LONGEST_LINE
from airflow_megatron.megatron.logs.log_lines import RECORD_LINES_ERE, LogParser, Record
from airflow_megatron.megatron.logs.training_run import TrainingRun
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.records import (
    ExitRecord,
    JobRecord,
    read_object,
)
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.submission.gpu_samples import SUMMARY, GpuUse, read_summary
from airflow_megatron.slurm.submission.refusals import recorded_refusal
from airflow_megatron.slurm.verdicts.recorded import RecordedVerdict
from airflow_megatron.slurm.verdicts.stage_records import attempt_state
from airflow_megatron.spec.documents.checkpoint_directories import iteration_of
from airflow_megatron.spec.layout.run_layout import (
    CHAINED_RECORD,
    CHECKPOINTS,
    CONVERTED,
    EVALUATIONS,
    EXIT_RECORD,
    GPU_SAMPLES,
    JOB_ID_RECORD,
    JOB_RECORD,
    JOBS,
    LOG_SUFFIX,
    LOGS,
    LR_FINDER,
    LR_FINDER_CURVE,
    LR_FINDER_REPORT,
    OWNER_RECORD,
    RELEASED_CLAIM,
    RESULTS_FILE,
    RUNS,
    TRACKER_FILE,
    VERDICT_RECORD,
    EvaluationPath,
    RecordPath,
    log_of,
    result_iteration,
)
from airflow_megatron.spec.layout.tracker import tracked_iteration

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.results.readings.sweep_jobs import SweepJob


MOST_OF_FILES: Final = 32 << 20
"""Maximum bytes of the records and results of a run: a job may write large files, which are sent compressed."""

MOST_OF_LOGS: Final = 128 << 20
"""Maximum bytes of the thinned logs of a run: a job may make any number of logs, or links to one log."""

MOST_MEMORY_KB: Final = 1_000_000
"""Maximum memory of a process that reads a log, in KiB: a sparse file is one line of any length."""

# Keeps about `most` evenly spaced iteration lines, and the last `tail` of them; the validations of at most `most`
# evenly spaced iterations, and the last `others` validations; of the other lines the first and the last `others`.
# Prints the kept lines in the order of the log, each after a space.
_THIN: Final = r"""
{ line = substr($0, 1, 4000) }
/\| consumed samples:|consumed_samples/ {
  seen++
  if (seen % stride == 0) { kept++; at[kept] = NR; text[NR] = line }
  if (kept >= most) {
    half = 0
    for (i = 1; i <= kept; i++) {
      if (i % 2) delete text[at[i]]
      else { half++; at[half] = at[i] }
    }
    kept = half; stride *= 2
  }
  recent[seen % tail] = line; recent_at[seen % tail] = NR
  next
}
/validation[^|]* loss at / {
  match(line, /loss at (iteration +)?[^ |]*/)  # lines of several data sets belong to one iteration
  moment = substr(line, RSTART, RLENGTH)
  if (moment != last_moment) { moments++; if (moments % every == 0) chosen++ }
  last_moment = moment
  if (moments % every == 0) { value[NR] = line; moment_of[NR] = moments }
  if (chosen > most) {
    every *= 2; chosen = int(moments / every)
    for (i in value) if (moment_of[i] % every) { delete value[i]; delete moment_of[i] }
  }
  values++
  final[values % others] = line; final_at[values % others] = NR
  next
}
{
  other++
  if (other <= others) text[NR] = line
  else { late[other % others] = line; late_at[other % others] = NR }
}
END {
  for (i in recent) text[recent_at[i]] = recent[i]
  for (i in value) text[i] = value[i]
  for (i in final) text[final_at[i]] = final[i]
  for (i in late) text[late_at[i]] = late[i]
  for (i = 1; i <= NR; i++) if (i in text) print " " text[i]
}
"""


class SnapshotError(AirflowMegatronError, ValueError):
    """The output of the snapshot command is missing or truncated."""


@dataclass(frozen=True, slots=True)
class AttemptSnapshot:
    """One attempt's directory ``.jobs/<stage>/<number>``.

    :param number: the attempt, from 1
    :param job_id: Slurm job id, or None if the submission is not recorded
    :param started: whether the job started
    :param chained: whether it waits, or waited, in the queue for the previous attempt
    :param job: ``job.json``, or None
    :param exit: ``exit.json``, or None if the job still runs or was killed
    :param gpus: use of its GPUs, if monitored
    :param verdict: ``verdict.json`` of this attempt, or None
    :param refusal: the message with which sbatch refused it, or empty
    """

    number: int
    job_id: str | None = None
    started: bool = False
    chained: bool = False
    job: JobRecord | None = None
    exit: ExitRecord | None = None
    gpus: tuple[GpuUse, ...] = ()
    verdict: RecordedVerdict | None = None
    refusal: str = ""


ALL_ATTEMPTS: Final = 0
"""Attempt of a log that all attempts of a job write."""


@dataclass(frozen=True, slots=True)
class LogExtract:
    """The lines of one log that contain records.

    :param stage: the stage that wrote it
    :param attempt: number of the attempt, :data:`ALL_ATTEMPTS` for a log that all attempts write
    :param data: the lines
    :param starts: for a whole log: the byte of the log at which each line begins
    """

    stage: str
    attempt: int
    data: bytes
    starts: tuple[int, ...] = ()

    def placed_records(self) -> list[tuple[int, Record]]:
        """Return the records of a whole log, each with the byte of the log at which its line begins."""
        found: list[tuple[int, Record]] = []
        line = before = 0
        for at, record in LogParser().feed_placed(self.data):
            line += self.data.count(b"\n", before, at)
            before = at
            found.append((self.starts[line], record))
        return found


@dataclass(slots=True)
class RunSnapshot:
    """Content of one run directory.

    :param run_dir: the directory on the cluster
    :param exists: False if the directory does not exist (yet)
    :param attempts: stage → its attempts, in order
    :param verdicts: stage → ``verdict.json``
    :param logs: extracts of logs, by stage and attempt
    :param evaluations: iteration → ``results.json`` of lm-evaluation-harness
    :param of_runs: the same for each run outside the sweep that was evaluated here, by its name
    :param lr_finder: ``lr_finder.json`` of a learning-rate search, or None
    :param lr_curve: its ``lr_finder_data.csv``, or empty
    :param unreadable: files whose content is not a JSON object, and unreadable directories
    :param converted: iterations converted to Hugging Face
    :param checkpoints: iterations that have a checkpoint directory
    :param tracked: iteration in Megatron's tracker file
    """

    run_dir: str
    exists: bool = True
    attempts: dict[str, list[AttemptSnapshot]] = field(default_factory=dict)
    verdicts: dict[str, RecordedVerdict] = field(default_factory=dict)
    logs: list[LogExtract] = field(default_factory=list)
    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    of_runs: dict[str, dict[int, dict[str, Any]]] = field(default_factory=dict)
    lr_finder: dict[str, Any] | None = None
    lr_curve: str = ""
    unreadable: list[str] = field(default_factory=list)
    converted: list[int] = field(default_factory=list)
    checkpoints: list[int] = field(default_factory=list)
    tracked: int | None = None
    _records: dict[tuple[str, int], Sequence[Record]] = field(default_factory=dict, repr=False, compare=False)
    _trainings: dict[str, TrainingRun] = field(default_factory=dict, repr=False, compare=False)

    def records(self, stage: str, attempt: int | None = None) -> list[Record]:
        """Return the records of a stage's logs; each log is parsed only once.

        :param stage: name of the stage.
        :param attempt: number of one of its attempts; None for all.
        :returns: the records of its attempts, oldest attempt first.
        """
        return [
            record
            for log in self.logs
            if log.stage == stage and attempt in (None, log.attempt)
            for record in self._parsed(log)
        ]

    def training(self, stage: str) -> TrainingRun:
        """Return the merged logs of a stage as one training; they are merged only once."""
        known = self._trainings.get(stage)
        if known is None:
            known = self._trainings[stage] = TrainingRun.of(self.records(stage))
        return known

    def has_training(self, job: SweepJob) -> bool:
        """Return whether a job is a training: by its stage kind, or because a script of the user logs iterations."""
        kind = job.reported_as
        return kind == "training" or (kind == "job" and self.training(job.stage).last is not None)

    def _parsed(self, log: LogExtract) -> Sequence[Record]:
        known = self._records.get((log.stage, log.attempt))
        if known is None:
            parser = LogParser()
            known = self._records[log.stage, log.attempt] = [*parser.feed(log.data), *parser.finish()]
        return known


@dataclass(frozen=True, slots=True)
class SweepSnapshot:
    """The run directories of a sweep at one moment."""

    runs: dict[str, RunSnapshot]

    def run(self, run_dir: str) -> RunSnapshot:
        """Return the snapshot of a run directory; an empty one if the directory was not requested."""
        return self.runs.get(run_dir) or RunSnapshot(run_dir, exists=False)


def snapshot_script(
    run_dirs: Iterable[str],
    *,
    logs: Iterable[str] = (),
    iteration_lines: int = 2000,
    log_tail_bytes: int | None = None,
    whole: bool = False,
) -> str:
    """Return the remote command.

    :param run_dirs: absolute paths of the run directories on the cluster.
    :param logs: absolute paths of further logs, which jobs write elsewhere
    :param iteration_lines: approximate number of iteration lines to return from each log; at least 2.
    :param log_tail_bytes: read only the last bytes of each log: sufficient for a status, and fast for logs of any
        length. None for whole logs.
    :param whole: return every line that contains a record, with its position in the log
    :returns: a POSIX shell script (GNU find, grep, gzip and base64, as on any Linux login node).
    :raises airflow_megatron.slurm.remote.quoting.QuotingError: if a path cannot be quoted.
    """
    if iteration_lines < 2:
        raise ValueError(f"iteration_lines must be at least 2, not {iteration_lines}")
    options = (
        f"-v most={iteration_lines} -v tail={min(100, iteration_lines)} -v others=400 -v stride=1 -v every=1"
    )
    source = '"$log"' if log_tail_bytes is None else ""
    tail = "" if log_tail_bytes is None else f'tail -c {int(log_tail_bytes)} "$log" | '
    search, thin = f'{tail}grep -aE -e "$pattern" {source}', f'awk {options} "$thin"'
    some = f" | awk '(bytes += length($0)) > {MOST_OF_LOGS} {{ exit 1 }} {{ print }}' || printf '@unreadable {LOGS}\\n'"
    if whole:
        search = 'grep -abE -e "$pattern" "$log"'
        thin, some = f"""awk '{{ print " " substr($0, 1, {LONGEST_LINE}) }}'""", ""
    records = (VERDICT_RECORD, CHAINED_RECORD, JOB_ID_RECORD, JOB_RECORD, EXIT_RECORD)
    tests = [f"-name {quote(name)}" for name in (*records, RESULTS_FILE)]
    paths = (f"*/{OWNER_RECORD}", f"*/{RELEASED_CLAIM}", LR_FINDER_REPORT, LR_FINDER_CURVE)
    names = " -o ".join([*tests, *(f"-path {quote(path)}" for path in paths)])
    directories = " ".join(quote_path(run_dir) for run_dir in run_dirs)
    others = " ".join(quote_path(log) for log in logs)
    return framed(f"""\
pattern={quote(RECORD_LINES_ERE)}
thin={quote(_THIN)}
newline='
'
gpus={quote(SUMMARY)}
one_run() {{
  printf '@run %s\\n' "$1"
  cd "$1" 2>/dev/null || {{ printf '@absent\\n'; return; }}
  for top in {JOBS} {EVALUATIONS} {LR_FINDER} {RUNS}; do
    [ -d "$top" ] || continue
    find "$top" -maxdepth 4 -type f -size -16384k ! -path "*$newline*" \\( {names} \\) \\
      -exec awk 'FNR == 1 {{ print "@file " FILENAME }} (bytes += length($0)) > {MOST_OF_FILES} {{ exit 1 }}
        {{ print " " $0 }}' {{}} + ||
      printf '@unreadable %s\\n' "$top"
  done
  for samples in {JOBS}/*/[0-9]*/{GPU_SAMPLES}/*.csv; do
    [ -f "$samples" ] || continue
    case $samples in *"$newline"*) continue ;; esac
    printf '@file %s\\n' "$samples"
    ( ulimit -v {MOST_MEMORY_KB} 2>/dev/null; awk "$gpus" "$samples" )
  done
  for found in {CONVERTED}/iter_* {CHECKPOINTS}/iter_* {CHECKPOINTS}/global_step*; do
    case $found in *"$newline"*) continue ;; esac
    if [ -d "$found" ]; then printf '@directory %s\\n' "$found"; fi
  done
  if [ -f {CHECKPOINTS}/{TRACKER_FILE} ]; then
    # Megatron ends the tracker without a newline: read fills the variable and fails. The shell reads byte by byte:
    # a tracker of any size (written by a job) would hold the reading of all runs.
    head -c 8192 {CHECKPOINTS}/{TRACKER_FILE} | {{
      tracker=
      read -r tracker || true
      printf '@tracker %s\\n' "$tracker"
    }}
  fi
  (
    ulimit -v {MOST_MEMORY_KB} 2>/dev/null
    for log in {LOGS}/*{LOG_SUFFIX}; do
      case $log in *"$newline"*) continue ;; esac
      one_log {"whole" if whole else "log"}
    done
  ){some}
}}
one_log() {{
  [ -f "$log" ] || return 0
  printf '@%s %s\\n' "$1" "$log"
  {{ searched=$({{ {{ {search}; printf '%s' "$?" >&4; }} | {thin} >&3; }} 4>&1); }} 3>&1
  [ "$searched" -le 1 ] || printf '@unreadable %s\\n' "$log"
}}
{{
  for run in {directories or '""'}; do
    [ -z "$run" ] || ( one_run "$run" )
  done
  printf '@others\\n'
  (
    ulimit -v {MOST_MEMORY_KB} 2>/dev/null
    for log in {others or '""'}; do
      [ -z "$log" ] || one_log own
    done
  )
  printf '@end\\n'
}} | gzip -c | base64
""")


def parse_snapshot(
    text: str, writers: Mapping[str, Sequence[tuple[str, str]]] | None = None
) -> SweepSnapshot:
    """Parse the output of :func:`snapshot_script`.

    :param text: standard output of the command; lines before and after its own are ignored.
    :param writers: each of its further logs → run directory and stage of the jobs that write it
    :returns: the snapshot.
    :raises SnapshotError: if the output is truncated or damaged.
    """
    try:
        lines = unframed(CommandResult(0, text, ""))
    except TransportError:
        raise SnapshotError("the cluster's answer is cut off; run the command again") from None
    try:
        content = gzip.decompress(base64.b64decode("".join(map(str.strip, lines)), validate=True))
    except (binascii.Error, EOFError, OSError, zlib.error) as error:
        raise SnapshotError(f"the cluster's answer is damaged ({error}); run the command again") from error
    snapshot, others, unreadable = _read_sections(content)
    for path, jobs in (writers or {}).items():
        for run_dir, stage in jobs:
            if run_dir in snapshot.runs and path in others:
                snapshot.runs[run_dir].logs.append(LogExtract(stage, ALL_ATTEMPTS, others[path]))
            if run_dir in snapshot.runs and path in unreadable:
                snapshot.runs[run_dir].unreadable.append(path)
    return snapshot


def _read_sections(content: bytes) -> tuple[SweepSnapshot, dict[str, bytes], set[str]]:
    """Return the run directories, the lines of the further logs by their paths, and those that cannot be read."""
    runs: dict[str, RunSnapshot] = {}
    run: RunSnapshot | None = None
    header: tuple[str, str] | None = None
    body: list[bytes] = []
    files: dict[str, str] = {}
    others: dict[str, bytes] = {}
    unreadable: set[str] = set()
    complete = False

    def close_section() -> None:
        if header is not None and header[0] == "own":
            others[header[1]] = b"\n".join([*body, b""])
        if run is None or header is None:
            return
        if header[0] == "file":
            files[header[1].removeprefix("./")] = b"\n".join(body).decode("utf-8", "replace")
        elif header[0] == "log":
            log = log_of(header[1])
            if log is not None:
                run.logs.append(LogExtract(*log, b"\n".join([*body, b""])))
        elif header[0] == "whole" and (log := log_of(header[1])) is not None:
            starts, _, lines = (
                zip(*(line.partition(b":") for line in body), strict=True) if body else ((),) * 3
            )
            run.logs.append(LogExtract(*log, b"\n".join([*lines, b""]), tuple(map(int, starts))))

    def close_run() -> None:
        close_section()
        if run is not None:
            _take_files(run, files)
            run.logs.sort(key=lambda log: (log.stage, log.attempt))
            files.clear()

    for line in content.split(b"\n"):
        if line.startswith(b" "):
            body.append(line[1:])
            continue
        if not line.startswith(b"@"):
            continue
        kind, _, rest = line[1:].decode("utf-8", "replace").partition(" ")
        if kind in ("run", "others", "end"):
            close_run()
            complete = kind == "end"
            run = runs.setdefault(rest, RunSnapshot(rest)) if kind == "run" else None
        else:
            close_section()
            if run is not None:
                _take_line(run, kind, rest)
            elif kind == "unreadable":
                unreadable.add(rest)
        header, body = (kind, rest), []
    if not complete:
        raise SnapshotError("the cluster's answer ends before its last section; run the command again")
    return SweepSnapshot(runs), others, unreadable


def _take_line(run: RunSnapshot, kind: str, rest: str) -> None:
    if kind == "absent":
        run.exists = False
    elif kind == "unreadable":
        run.unreadable.append(rest)
    elif kind == "tracker":
        run.tracked = tracked_iteration(rest)
    elif kind == "directory":
        parent, _, name = rest.partition("/")
        if parent == CHECKPOINTS:
            iteration = iteration_of(name)
            if iteration is not None:
                run.checkpoints.append(iteration)
                run.checkpoints.sort()
        else:
            converted = result_iteration(name)
            if converted is not None:
                run.converted.append(converted)
                run.converted.sort()


def _take_files(run: RunSnapshot, files: dict[str, str]) -> None:
    attempts: dict[tuple[str, int], dict[str, str]] = {}
    for path, text in sorted(files.items()):
        if (evaluation := EvaluationPath.from_relative(path)) is not None:
            of_run = run.of_runs.setdefault(evaluation.run, {}) if evaluation.run else run.evaluations
            _keep_object(run, of_run, evaluation.iteration, path, text)
        elif path == LR_FINDER_CURVE:
            run.lr_curve = text
        elif path == LR_FINDER_REPORT:
            run.lr_finder = read_object(text)
            if run.lr_finder is None:
                run.unreadable.append(path)
        elif (record := RecordPath.from_relative(path)) is not None:
            if record.number is not None:
                attempts.setdefault((record.stage, record.number), {})[record.name] = text
            elif record.name == VERDICT_RECORD:
                verdict = RecordedVerdict.read(text)
                if verdict is None:
                    run.unreadable.append(path)
                else:
                    run.verdicts[record.stage] = verdict
    for (stage, number), held in sorted(attempts.items()):
        left = attempt_state(number, held)
        refusal = "" if left.job_id else recorded_refusal(_newest_release(held))
        if not refusal and all(_is_release(name) for name in held):
            continue  # submissions that wait for room leave nothing else
        run.attempts.setdefault(stage, []).append(
            AttemptSnapshot(
                number=number,
                job_id=left.job_id,
                chained=left.chained,
                started=OWNER_RECORD in held or EXIT_RECORD in held,
                job=JobRecord.from_json(read_object(held.get(JOB_RECORD))),
                exit=left.exit,
                gpus=tuple(
                    use
                    for path, text in held.items()
                    if path.startswith(f"{GPU_SAMPLES}/")
                    for use in read_summary(path.removeprefix(f"{GPU_SAMPLES}/").removesuffix(".csv"), text)
                ),
                verdict=RecordedVerdict.read(held.get(VERDICT_RECORD)),
                refusal=refusal,
            )
        )


def _newest_release(held: dict[str, str]) -> str:
    """Return the content of the newest claim's file ``released``, empty if no claim has one."""
    names = list(filter(_is_release, held))
    return held[max(names, key=_generation)] if names else ""


def _is_release(name: str) -> bool:
    return fnmatchcase(name, RELEASED_CLAIM)


def _generation(name: str) -> int:
    number = name.partition("/")[0].rpartition(".")[2]
    return int(number) if number.isdecimal() else 0


def _keep_object(run: RunSnapshot, into: dict[Any, dict[str, Any]], key: Any, path: str, text: str) -> None:
    value = read_object(text)
    if value is None:
        run.unreadable.append(path)
    else:
        into[key] = value
