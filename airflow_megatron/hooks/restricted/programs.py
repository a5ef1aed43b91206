"""The programs that a restricted key may run: the remote scripts of this package, with places for their values.

These programs submit, poll, repair, cancel and read jobs. Not included are the commands of conditions, installations,
the check of a cluster, the removal and packing of run directories, and scripts that read checkouts.
``tests/hooks/restricted`` compares the texts with those that the package sends.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.hooks.restricted.templates import (
    canonical,
    document,
    many,
    maybe,
    nodes,
    values_of,
    word,
    words,
)
from airflow_megatron.results.readings.snapshot import snapshot_script
from airflow_megatron.slurm.remote.framing import framed
from airflow_megatron.slurm.remote.profile import SlurmCommands, slurm_functions
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.submission.provenance import ENVIRONMENTS
from airflow_megatron.slurm.submission.queue_limits import queue_limit_functions
from airflow_megatron.spec.layout.run_layout import (
    AHEAD_RECORD,
    ARRAYS,
    CHAINED_RECORD,
    JOB_RECORD,
    JOB_SCRIPT,
    JOBS,
    SECRETS,
    SUBMITTING,
    WITHDRAWN,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBER: Final = 987654321
"""Placeholder for a number in the snapshot's script."""
_RUN_DIRECTORY: Final = "/RUN-DIRECTORY"
"""Placeholder for the directories in the snapshot's script."""
_LOG: Final = "/FURTHER-LOG"
"""Placeholder for the logs outside them."""

LAYOUT: Final = {
    "hidden": [JOBS, ARRAYS, SUBMITTING, ENVIRONMENTS],
    "attempts": [JOBS, ARRAYS],
    "secrets": SECRETS,
    "withdrawn": WITHDRAWN,
}
"""Names of a run directory that the checks of values need (``dispatcher.Checks``)."""


@cache
def programs(commands: SlurmCommands) -> dict[str, Any]:
    """Return the programs: name → ``reads`` (whether it changes nothing) and ``nodes``.

    :param commands: how Slurm's commands are called on the cluster
    """
    texts = {**_reading(commands), **_changing(commands)}
    return {name: {"reads": name in _reading(commands), "nodes": nodes(text)} for name, text in texts.items()}


def installed(commands: SlurmCommands) -> bytes:
    """Return the file of the cluster's side: ``layout`` and ``programs``."""
    return canonical({"layout": LAYOUT, "programs": programs(commands)})


def digest(commands: SlurmCommands) -> str:
    """Return the SHA-256 of that file."""
    return hashlib.sha256(installed(commands)).hexdigest()


def request_for(script: str, commands: SlurmCommands) -> dict[str, Any] | None:
    """Return the request that makes the cluster run *script*; None if no program is this script."""
    for name, program in programs(commands).items():
        values = values_of(program["nodes"], script)
        if values is not None:
            return {"program": name, "values": values}
    return None


def _reading(commands: SlurmCommands) -> dict[str, str]:
    functions = slurm_functions(commands)
    poll = "\n".join(
        (
            f"am_root={word('start')}\nexport am_root",
            functions,
            shell_file("exit_record"),
            shell_file("own_name"),
            shell_file("poll"),
            "printf 'now %s\\n' \"$(date +%s.%N)\"",
        )
    )
    calls = (
        f"am_queue {word('line')}",
        f"am_accounting {word('line')} {word('int')} {word('line')} {word('int')}" + many(f" {word('ids')}"),
        "am_one_liners" + many(f" {word('rest-or-nothing')}"),
        f"am_checkpoints {word('int')} {word('int')} {word('int')}"
        + many(f" {word('int')} {word('rest-or-nothing')}"),
        "am_checks" + many(f" {word('rest-or-nothing')}"),
        f"am_stream_list() {{\n  cat {document('logs')}}}",
        f"am_streams {word('int')} {word('int')} {word('int')} {word('int')}",
        f"am_globs {word('int')} {word('int')} {word('int')}" + many(f" {word('pattern')}"),
        f"am_commands {word('int')}" + many(f" {word('command')}"),
    )
    poll += "".join(maybe(f"\n{call}") for call in calls)
    ahead = f"{functions}\n{shell_file('ahead_queue')}\n"
    return {
        "version": f"{commands.command('sinfo')} --version",
        "home": framed("cd && pwd -P"),
        "poll": framed(poll),
        "job-ends": framed(f"{shell_file('job_ends')}\nam_job_ends {word('int')}" + many(f" {word('path')}")),
        "stage-states": framed(
            f"{shell_file('exit_record')}\n{shell_file('other_account')}\n{shell_file('stage_state')}"
            + many(f"\nam_stage {word('int')} {word('path')}")
        ),
        "finished-stages": framed(
            shell_file("finished_stages")
            + many("\nam_point" + many(f" {word('int')} {word('path')}"))
            + "\nam_verdicts"
        ),
        "checkpoints": framed(
            f"am_root={word('path')}\nexport am_root\n{shell_file('poll')}\n"
            f"{shell_file('checkpoint_listing')}\nam_listing {word('int')} {word('int')} {word('int')} {word('int')}"
        ),
        "folder-sizes": framed(
            shell_file("run_folders")
            + many(f"\nam_folder {word('int')} {word('folder')} {word('relative')}" + maybe(" list-of-jobs"))
        ),
        "provenance": framed(
            shell_file("provenance_record") + many(f"\nam_read {word('int')} {word('path')} {word('path')}")
        ),
        "result": framed(f"head -c {word('int')} {word('path')}"),
        "waiting-jobs": framed(f"{ahead}am_waiting"),
        **dict(_snapshots()),
    }


def _snapshots() -> Iterator[tuple[str, str]]:
    """Yield the ways to read runs for reports."""
    for name, arguments in (
        ("runs", {}),
        ("runs-whole", {"whole": True}),
        ("runs-ends", {"log_tail_bytes": _NUMBER}),
        ("runs-ends-whole", {"log_tail_bytes": _NUMBER, "whole": True}),
    ):
        text = snapshot_script([_RUN_DIRECTORY], logs=[_LOG], iteration_lines=_NUMBER, **arguments)
        text = text.replace("tail=100 ", f"tail={word('int')} ").replace(str(_NUMBER), word("int"))
        places = words("path") + maybe('""')
        yield name, text.replace(_RUN_DIRECTORY, places).replace(_LOG, places)


def _changing(commands: SlurmCommands) -> dict[str, str]:
    functions = slurm_functions(commands)
    ahead = f"{functions}\n{shell_file('ahead_queue')}\n"
    own_name = shell_file("own_name")
    calling = f"am_scancel_ids() {{ xargs -n 500 {commands.command('scancel')}; }}\n"
    scancel = f"{calling}{own_name}\n{shell_file('cancel')}"
    of_name = 'awk -F"|" -v name="$am_name" \'$3 == name { print $2 "|" $3 }\''
    folder = shell_file("checkpoint_folder")
    files = ("other_account", "submit", "array_claim", "submit_array")
    array = "".join(f"{shell_file(name)}\n" for name in files)
    return {
        "submit": framed(f"{_submission(commands)}\nam_attempt"),
        "submit-array": framed(
            f"{_submission(commands, array=True)}\n{shell_file('submit_array')}\nam_each_task() {{\n"
            + many(
                f'  "$@" {word("int")} {word("attempt")} {word("path")} {word("path")} {word("script")} {word("json")} '
                f"{_secrets()} || return\n"
            )
            + "}\nam_attempt\nam_record_tasks"
        ),
        "decide-array": framed(
            f"{_claim()}\n{functions}\n{queue_limit_functions((), '', 1)}\n{array}"
            f"am_decide_array {word('attempt')} {word('name')}\nam_record_tasks"
        ),
        "cancel": framed(f"{functions}\nam_wanted() {{\n  cat {document('jobs')}}}\n{scancel}"),
        "withdraw": framed(
            f"{functions}\nprintf '' >{word('mark')} || printf 'failed cannot write %s\\n' {word('mark')}\n"
            f"am_name={word('name')}\nam_wanted() {{\n  printf '%s\\n' \"$am_rows\" | {of_name}\n"
            f"  cat {document('jobs')}}}\n{scancel}"
        ),
        "withdraw-chain": framed(
            f"{functions}\nam_stage_dir={word('of-attempts')}\nam_after={word('int')}\n{shell_file('withdraw_chain')}"
        ),
        "take-up": framed(f"{ahead}am_take_up {word('attempt')}"),
        "withdraw-ahead": framed(f"{ahead}am_withdraw {words('of-attempts')}"),
        "write-record": framed(
            maybe(f"[ ! -d {word('secrets-folder')} ] || rm -rf {word('secrets-folder')}\n")
            + f"am_file={word('record-file')}\nam_write() {{\n"
            f'  mkdir -p {word("of-attempts")} && cat >"$am_file.$$" {document("json")}'
            f'  [ $? -eq 0 ] && mv -fT "$am_file.$$" "$am_file"\n}}\n'
            "am_error=$(am_write 2>&1) && printf 'written\\n' || {\n"
            '  rm -f "$am_file.$$"\n  printf \'failed %s\\n\' "$am_error"\n}'
        ),
        "remove-secrets": framed(
            f"am_said=$(rm -rf {word('secrets-folder')} 2>&1) || printf 'failed %s\\n' \"$am_said\""
        ),
        "write-tracker": framed(
            f"am_dir={word('path')}\nam_iteration={word('int')}\n{folder}\n"
            "am_tracker_read || am_tracker=directory\n"
            "case $am_tracker in\n  \"$am_iteration\") printf 'written\\n' ;;\n"
            "  *[0-9]*) printf 'failed it holds %s by now: another job saves here\\n' \"$am_tracker\" ;;\n"
            "  *)\n    am_said=$(am_tracker_write \"$am_iteration\" 2>&1) && printf 'written\\n' ||\n"
            "      printf 'failed %s\\n' \"$am_said\"\n    ;;\nesac"
        ),
        "quarantine": framed(
            f"{folder}\n{shell_file('quarantine')}\nam_quarantine {word('path')} {word('int')} {word('prefix')} "
            f"{word('int')} {word('number')} {word('number')}"
        ),
        "rollback": framed(
            f"{folder}\n{shell_file('rollback')}\n"
            f"am_rollback {word('path')} {word('int')} {word('int')} {word('prefix')}"
        ),
        "fresh-start": framed(
            f"am_from={word('path')}\nam_to=$am_from.before_{word('int')}\n"
            'if [ ! -e "$am_from" ] || [ -e "$am_to" ]; then\n  printf \'nothing\\n\'\n'
            'elif am_said=$(mv "$am_from" "$am_to" 2>&1); then\n  printf \'aside %s\\n\' "$am_to"\n'
            "else\n  printf 'failed %s\\n' \"$am_said\"\nfi"
        ),
    }


def _claim() -> str:
    return (
        f"am_token={word('token')}\nam_prefix={word('name')}\nam_window={word('int')}\nam_busy={word('int')}"
    )


def _secrets() -> str:
    pair = f"{word('variable')} {word('base64')}"
    return maybe(pair + many(f" {pair}"))


def _submission(commands: SlurmCommands, *, array: bool = False) -> str:
    """Return the text of ``single_job.submission_functions``."""
    writing, submitting = ("am_take_tasks", "am_leave_other_tasks") if array else ("true", "true")
    tasks = f' "--array=$am_tasks%{word("int")}"' if array else ""
    limits = (
        f"am_places={word('path')}/$(id -u)\nam_jobs={word('int')}\nam_limits() {{\n  cat {document('limits')}}}\n"
        f"{shell_file('queue_limits')}"
    )
    sbatch = (
        f'{commands.command("sbatch")} --parsable --ignore-pbs {word("job-name")} "--comment=$1" '
        f"{word('dependency')}{many(' ' + word('option'))}{tasks}"
    )
    path = f'"$am_dir/{AHEAD_RECORD}"'
    chained = f'printf \'%s\\n\' "$am_name" | am_put "$am_dir/{CHAINED_RECORD}"'
    return "\n".join(
        (
            f"am_dir={word('attempt')}",
            f"am_log_dir={word('path-or-none')}",
            f"am_name={word('name')}",
            _claim(),
            slurm_functions(commands),
            maybe(queue_limit_functions((), "", 1)) + maybe(limits),
            "am_run_sbatch() { # COMMENT; the job gets the account's own locale back",
            f"  {submitting} || return",
            '  (if [ -n "$am_site_locale" ]; then LC_ALL=$am_site_locale; else unset LC_ALL; fi',
            f"  exec {sbatch})",
            "}",
            "am_write_job() {",
            f'  am_put "$am_dir/{JOB_SCRIPT}" {document("script")}',
            f'  [ $? -eq 0 ] && am_put "$am_dir/{JOB_RECORD}" {document("json")}',
            f'  [ $? -eq 0 ] && am_deliver_secrets "$am_dir" {_secrets()}',
            f"  [ $? -eq 0 ] && {maybe(writing)}{maybe(chained)}",
            f"  [ $? -eq 0 ] && {maybe(f'am_put_line {path} ' + word('line'))}{maybe(f'rm -f {path}')}",
            "}",
            shell_file("deliver_secrets"),
            shell_file("other_account"),
            shell_file("submit"),
            shell_file("array_claim"),
        )
    )
