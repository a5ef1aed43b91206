"""``airflow-megatron cluster check``: compare a cluster with its profile, from the login node and from a job."""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import yaml

from airflow_megatron.cli.runs.login_node import NoConnectionError, login_node
from airflow_megatron.cli.setup.host_keys import host_key_hint
from airflow_megatron.plan.sweep_plan import plan_sweep
from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.profile import slurm_functions
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.transport import LoginRefusedError, TransportError
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.spec.documents.quantities import parse_duration
from airflow_megatron.spec.model.cluster_profile import load_cluster
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.spec.trust.plain_text import shown
from airflow_megatron.supervision.attempts import JobAttempts, SubmissionRefusedError, slurm_commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_megatron.slurm.remote.transport import CommandResult
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job

OK: Final = "ok"
WARNING: Final = "warning"
FAILED: Final = "failed"
_COMMANDS: Final = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
_CLOCK_S: Final = 60
"""Maximum difference of two clocks in seconds that has no effect."""
_POLL_S: Final = 2.0
_LOG_LINES: Final = 5
_LEAST_KIB: Final = 1024
"""Free space without which not even a job's records and log can be written."""
_FULL_PERCENT: Final = 95
"""Used part of a file system above which it may soon be full."""
_QUOTA_S: Final = 20
_QUOTA_LINES: Final = 20
_RENAMED: Final = "jobs are found by their names; the site's job_submit plug-in must leave them as they are"
_JOB: Final = """\
am_say() { printf 'am_check\\t%s\\t%s\\n' "$1" "$2"; }
am_say node "$(uname -n)"
: >written_by_the_node && am_say writes yes
am_say python "$("$1" --version 2>&1 | tail -n 1)"
am_say torch "$("$1" -c 'import torch; print(torch.__version__, "GPUs:", torch.cuda.device_count())' 2>&1 | tail -n 1)"
am_say megatron "$("$1" -c 'import megatron.core as core; print("megatron-core", core.__version__)' 2>&1 | tail -n 1)"
am_say programs "$([ -r "$2/pretrain_gpt.py" ] && echo "$2")"
"""


class CheckRow(NamedTuple):
    """One line of the table.

    :param what: the checked item
    :param state: :data:`OK`, :data:`WARNING` or :data:`FAILED`
    :param detail: the result
    :param fix: how to fix it
    """

    what: str
    state: str
    detail: str
    fix: str = ""


def check_cluster(name: str, *, with_job: bool, patience_s: float, as_json: bool) -> int:
    """Check a cluster, print a table, and return the exit status: 1 if something failed.

    :param name: of the profile
    :param with_job: also run a job
    :param patience_s: seconds to wait for the job
    :raises airflow_megatron.spec.documents.errors.SpecError: if the profile does not exist or is invalid
    """
    cluster = load_cluster(name)
    rows = []
    for row in _rows(cluster, with_job=with_job, patience_s=patience_s):
        rows.append(row)
        if not as_json:
            print(_line(row), flush=True)
    failed = sum(row.state == FAILED for row in rows)
    if as_json:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        print(f"{name}: {f'{failed} of {len(rows)} checks failed' if failed else 'ready'}")
    return 1 if failed else 0


def _line(row: CheckRow) -> str:
    line = f"{row.state:<8} {row.what:<12} {row.detail}"
    return f"{line}\n{'':<21} → {row.fix}" if row.fix else line


def _rows(cluster: ClusterProfile, *, with_job: bool, patience_s: float) -> Iterator[CheckRow]:
    began = time.monotonic()
    try:
        with login_node(cluster) as run:
            found = _answers(run(_login_script(cluster)))
            took = time.monotonic() - began
            yield CheckRow("connection", OK, f"{found['login'][0]} by {cluster.ssh_conn_id}, {took:.1f} s")
            rows = list(login_rows(cluster, found, time.time()))
            yield from rows
            if not with_job:
                return
            if any(row.state == FAILED and row.what in ("sbatch", "squeue", "run root") for row in rows):
                yield CheckRow(
                    "job", FAILED, "not submitted, because earlier checks failed", "correct that first"
                )
                return
            yield from _job_rows(cluster, run, patience_s)
    except LoginRefusedError as error:
        yield CheckRow("connection", FAILED, str(error), host_key_hint(cluster.ssh_conn_id, str(error)))
    except NoConnectionError as error:
        yield CheckRow("connection", FAILED, error.what, error.fix)
    except TransportError as error:
        by_hand = "log in by hand from this machine, with the same host, port, user and key"
        yield CheckRow("connection", FAILED, str(error), by_hand)


def _login_script(cluster: ClusterProfile) -> str:
    commands = slurm_commands(cluster)
    versions = "\n".join(
        f'am_say {name} "$({commands.command(name)} --version 2>&1 | head -n 1)"' for name in _COMMANDS
    )
    checkouts = "\n".join(
        f"[ -d {quote_path(folder)} ] || am_say no_checkout {quote(folder)}" for folder in _checkouts(cluster)
    )
    root = quote_path(cluster.run_root)
    return framed(
        f"""{slurm_functions(commands)}
am_say() {{ printf '%s\\t%s\\n' "$1" "$2"; }}
am_say login "$(id -un)@$(uname -n)"
am_say clock "$(date +%s)"
{versions}
if am_error=$(am_sacct -X -n -S now-1hour -o JobID 2>&1 >/dev/null); then
  am_say sacct ok
else
  am_say sacct "$am_error"
fi
{commands.command("sinfo")} -h -o '%R|%a|%c|%G' 2>/dev/null | sort -u | while read -r am_row; do
  am_say partition "$am_row"
done
if am_error=$(mkdir -p {root} 2>&1 && am_file=$(mktemp {root}/.check.XXXXXX 2>&1) && rm -f "$am_file"); then
  am_say root ok
else
  am_say root "${{am_error:-no file can be created there}}"
fi
am_say space "$(df -Pk {root} 2>/dev/null | tail -n 1)"
am_say files "$(df -Pi {root} 2>/dev/null | tail -n 1)"
{_quota_lines(cluster)}
[ -r {quote_path(cluster.megatron_lm_dir)}/pretrain_gpt.py ] || am_say absent {quote(cluster.megatron_lm_dir)}
{checkouts}"""
    )


def _quota_lines(cluster: ClusterProfile) -> str:
    """Return the lines that run the site's command for quotas, which may hang or print a lot."""
    if cluster.storage is None or cluster.storage.quota is None:
        return ""
    command = f"timeout {_QUOTA_S} bash -c {quote(cluster.storage.quota)} 2>&1 </dev/null"
    return (
        f'am_said=$({command}) || am_say quota_failed "$?"\n'
        f"printf '%s\\n' \"$am_said\" | sed -n 1,{_QUOTA_LINES}p |\n"
        '  while IFS= read -r am_row; do am_say quota "$am_row"; done'
    )


def _checkouts(cluster: ClusterProfile) -> list[str]:
    found: list[str] = []
    for section in cluster.trainers.values():
        checkout = section.checkout
        found += [checkout] if isinstance(checkout, str) else (checkout or {}).values()
    return sorted(set(found))


def _answers(result: CommandResult) -> dict[str, list[str]]:
    """Return key → the values that a script printed."""
    found: dict[str, list[str]] = {}
    for line in unframed(result):
        key, tab, value = line.partition("\t")
        if tab:
            found.setdefault(key, []).append(value.strip())
    return found


def login_rows(cluster: ClusterProfile, found: dict[str, list[str]], now: float) -> Iterator[CheckRow]:
    """Yield the rows for the answers of the login node.

    :param found: key → values that the script printed
    :param now: Unix time here
    """
    for name in _COMMANDS:
        text = found.get(name, [""])[0]
        if text.startswith("slurm"):
            yield CheckRow(name, OK, text)
        else:
            fix = "write slurm_bin (folder of Slurm's commands) or login_shell: true in the profile"
            yield CheckRow(name, FAILED, text or "prints no version", fix)
    accounting = found.get("sacct", [""])[0]
    if accounting == "ok":
        yield CheckRow("accounting", OK, "sacct answers")
    else:
        detail = f"sacct: {accounting}; verdicts and GPU-hours come from squeue and the job's own records"
        yield CheckRow("accounting", WARNING, detail)
    skew = now - float(found.get("clock", ["0"])[0] or 0)
    if abs(skew) > _CLOCK_S:
        yield CheckRow(
            "clock", WARNING, f"differs from this machine's by {skew:.0f} s", "synchronise the clocks (NTP)"
        )
    yield from partition_rows(cluster, found.get("partition", []))
    root = found.get("root", [""])[0]
    fix = "write a run_root in the profile that exists and that you may write"
    yield (
        CheckRow("run root", OK, f"{cluster.run_root}: files can be created")
        if root == "ok"
        else CheckRow("run root", FAILED, f"{cluster.run_root}: {root}", fix)
    )
    yield from storage_rows(cluster, found)
    fix = f"airflow-megatron cluster install {cluster.name}"
    if found.get("absent"):
        yield CheckRow("programs", FAILED, f"{cluster.megatron_lm_dir} is not there", fix)
    else:
        yield CheckRow("programs", OK, cluster.megatron_lm_dir)
    if missing := found.get("no_checkout", []):
        detail = f"{', '.join(missing)} not there; trainings of megatron_lm with that release cannot start"
        yield CheckRow("checkout", WARNING, detail, f"{fix} --only checkout")


def storage_rows(cluster: ClusterProfile, found: dict[str, list[str]]) -> Iterator[CheckRow]:
    """Yield the free space of the file system of the run root, and the site's quotas and purges.

    :param found: ``space`` and ``files`` hold the last lines of ``df -Pk`` and ``df -Pi``
    """
    free = [
        (*row, what)
        for what, key in (("GiB", "space"), ("files", "files"))
        if (row := _free(found.get(key, [""])[0])) is not None
    ]
    if free:
        counted = " and ".join(
            f"{left / 1024**2 if what == 'GiB' else left:,.0f} {what}" for left, _, what in free
        )
        full = max(used for _, used, _ in free)
        room = CheckRow("free", OK, f"{counted} on the file system of {cluster.run_root}")
        fix = "delete sweeps that are not needed (airflow-megatron delete), or request a larger quota"
        if any(left < (_LEAST_KIB if what == "GiB" else 1) for left, _, what in free):
            room = room._replace(
                state=FAILED, detail=f"{room.detail}: no room for the files of a job", fix=fix
            )
        elif full >= _FULL_PERCENT:
            room = room._replace(state=WARNING, detail=f"{room.detail}, which is {full} % full", fix=fix)
        yield room
    storage = cluster.storage
    if storage is None:
        return
    for line in found.get("quota", []):
        if line:
            yield CheckRow("quota", OK, line)
    if failed := found.get("quota_failed"):
        ending = "takes too long" if failed[0] == "124" else f"ends with status {failed[0]}"
        yield CheckRow("quota", WARNING, f"{storage.quota} {ending}", "correct storage.quota in the profile")
    if storage.purge_after is not None:
        days = parse_duration(storage.purge_after) / 86_400
        origin = f" ({storage.source}, read {storage.read})" if storage.source else ""
        yield CheckRow("purge", OK, f"the site deletes files without access for {days:g} days{origin}")


def _free(row: str) -> tuple[int, int] | None:
    """Return the free space and the use in percent from a line of ``df -P``; None without a limit."""
    fields = row.split(None, 5)
    if len(fields) != 6 or not (fields[3].isdecimal() and fields[4].rstrip("%").isdecimal()):
        return None
    return (int(fields[3]), int(fields[4].rstrip("%"))) if fields[1] != "0" else None


def partition_rows(cluster: ClusterProfile, rows: Sequence[str]) -> Iterator[CheckRow]:
    """Yield the rows that compare the partitions of the profile with those of Slurm.

    :param rows: name, state, CPUs of a node and generic resources, as ``sinfo -o '%R|%a|%c|%G'`` prints them
    """
    known: dict[str, list[list[str]]] = {}
    for row in rows:
        fields = row.split("|")
        if len(fields) == 4:
            known.setdefault(fields[0], []).append(fields)
    usual = (cluster.slurm.partition or "").split(",")
    for name in sorted({*cluster.partitions, *(each for each in usual if each)}):
        if name not in known:
            yield CheckRow(
                "partition",
                FAILED,
                f"Slurm has no {name}",
                f"one of: {', '.join(sorted(known)) or 'sinfo lists none'}",
            )
            continue
        section = cluster.partition(name)
        cpus = max(
            (int(row[2].rstrip("+")) for row in known[name] if row[2].rstrip("+").isdecimal()), default=0
        )
        named = getattr(section, "cpus_per_node", None)
        if not any(row[1] == "up" for row in known[name]):
            yield CheckRow("partition", WARNING, f"{name} is {known[name][0][1]}", "no job starts there now")
        elif named and cpus and named > cpus:
            detail = f"{name}: nodes have {cpus} CPUs, the profile says {named}"
            yield CheckRow("partition", WARNING, detail, f"cpus_per_node: {cpus}")
        else:
            resources = ", ".join(sorted({row[3] for row in known[name]} - {"(null)"})) or "no GPUs listed"
            yield CheckRow("partition", OK, f"{name}: {cpus} CPUs, {resources}")


def _planned_job(cluster: ClusterProfile) -> Job:
    """Return the job: one command with the profile's defaults, in a separate directory."""
    command = ["bash", "-c", _JOB, "check", "{{ python }}", "{{ megatron_lm_dir }}"]
    spec = {
        "name": "cluster_check",
        "cluster": cluster.name,
        "point": f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(2)}",
        "slurm": {"nodes": 1, "time": "5m", "signal_before": "1s"},
        "stages": {"check": {"kind": "command", "command": command}},
    }
    sweep = load_sweep_text(yaml.safe_dump(spec, sort_keys=False), "cluster_check.yaml")
    (job,) = plan_sweep(sweep, cluster).jobs
    return job


def _job_rows(
    cluster: ClusterProfile, run: Callable[[str], CommandResult], patience_s: float
) -> Iterator[CheckRow]:
    job = _planned_job(cluster)
    attempts = JobAttempts(job, cluster, run)
    try:
        outcome = attempts.submit(1, limits=())
    except SubmissionRefusedError as error:
        yield CheckRow("job", FAILED, str(error), "correct the slurm defaults of the profile")
        return
    if outcome.job_id is None:
        yield CheckRow("job", WARNING, f"not submitted: {outcome.message}", "try again later")
        return
    began = time.monotonic()
    state = "?"
    try:
        name, given = _queue_row(run, cluster, outcome.job_id, "%j"), attempt_of(job, 1).job_name
        if name and name != given:
            yield CheckRow(
                "job name", FAILED, f"Slurm calls job {outcome.job_id} {shown(name)}, not {given}", _RENAMED
            )
        while (
            state := _queue_row(run, cluster, outcome.job_id, "%T (%r)")
        ) and time.monotonic() < began + patience_s:
            time.sleep(_POLL_S)
    finally:
        if state:
            attempts.cancel(1, outcome.job_id)
    took = f"{time.monotonic() - began:.0f} s"
    if state:
        hint = "a longer --wait, or another partition or QOS"
        yield CheckRow("job", FAILED, f"job {outcome.job_id} was {state} after {took}; cancelled", hint)
        return
    log = unframed(run(framed(f"tail -c 20000 {quote_path(job.log_file(1))} 2>&1")))
    printed = dict(
        line.split("\t", 2)[1:] for line in log if line.startswith("am_check\t") and line.count("\t") == 2
    )
    yield from job_rows(cluster, outcome.job_id, took, printed, log, job.log_file(1))
    if "writes" in printed:
        run(framed(f'am_dir={quote_path(job.run_dir)}\nrm -rf "$am_dir"\nrmdir "${{am_dir%/*}}" 2>/dev/null'))


def _queue_row(run: Callable[[str], CommandResult], cluster: ClusterProfile, job_id: str, output: str) -> str:
    """Return what squeue prints about a job in a format; empty if it has left the queue."""
    number = job_id.partition(";")[0]
    functions = slurm_functions(slurm_commands(cluster))
    script = f"{functions}\nam_squeue -h -j {quote(number)} -o {quote(output)} 2>/dev/null"
    return next((line for line in unframed(run(framed(script))) if line), "")


def job_rows(
    cluster: ClusterProfile,
    job_id: str,
    took: str,
    printed: dict[str, str],
    log: Sequence[str],
    log_file: str,
) -> Iterator[CheckRow]:
    """Yield the rows for the results of the job.

    :param took: duration in the queue and of the run, as text
    :param printed: key → printed value
    :param log: lines of its log
    """
    if "writes" not in printed:
        last = " | ".join([line for line in log if line.strip()][-_LOG_LINES:])
        fix = f"read {log_file} on the cluster; run_root must be on a file system that all nodes share"
        yield CheckRow("job", FAILED, f"job {job_id} did not print its results: {last or 'no log'}", fix)
        return
    where = f" in {cluster.container.image}" if cluster.container is not None else ""
    yield CheckRow(
        "job", OK, f"job {job_id} ran on {printed['node']}{where}, {took}; it can write the run root"
    )
    install = (
        "the image must hold it" if cluster.container else f"airflow-megatron cluster install {cluster.name}"
    )
    python = printed.get("python", "")
    yield _expected(
        "python", python, python.startswith("Python 3"), f"correct python in the profile ({cluster.python})"
    )
    torch = printed.get("torch", "")
    yield _expected("torch", torch, " GPUs: " in torch, install)
    wanted = cluster.slurm.gpus_per_node or 0
    counted = torch.rpartition(" GPUs: ")[2]
    if wanted and counted == "0":
        yield CheckRow(
            "GPUs", WARNING, f"torch sees none of {wanted}", "check gpu_option, and that torch is a GPU build"
        )
    megatron = printed.get("megatron", "")
    yield _expected("megatron", megatron, megatron.startswith("megatron-core "), install)
    programs = printed.get("programs", "")
    yield _expected(
        "on the node", programs or f"{cluster.megatron_lm_dir} is not there", bool(programs), "share it"
    )


def _expected(what: str, detail: str, good: bool, fix: str) -> CheckRow:
    return CheckRow(what, OK, detail) if good else CheckRow(what, FAILED, detail or "no answer", fix)
