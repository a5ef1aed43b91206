"""Remove each protection of docs/security.md from a copy of the project, and check that its tests then fail.

    python tests/trust/without_fixes.py [CLASS …]

Each protection is removed by an edit of the source: the existing text, and the text without the protection. A test that
still passes then proves nothing. ``test_without_fixes.py`` checks that the edits match the source.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "airflow_megatron"
SECONDS: Final = 40
"""Maximum processor time of the tests of one protection; tests that reach it count as failed."""


@dataclass(frozen=True)
class Fix:
    """A protection of one class.

    :param kind: the class
    :param what: what it protects from
    :param file: source file, relative to the package
    :param written: text of the source, which occurs once
    :param instead: text without the protection
    :param tests: test file with attacks, relative to ``tests/``
    """

    kind: str
    what: str
    file: str
    written: str
    instead: str
    tests: tuple[str, ...]


NOTIFIERS: Final = "trust/test_notifiers_of_specs.py"
TRACKERS: Final = "trust/test_trackers_of_specs.py"
ENVIRONMENT: Final = "trust/test_environment_of_specs.py"
FILES: Final = "trust/test_named_files.py"
ISOLATION: Final = "dag_factory/test_isolation.py"
CACHE: Final = "dag_factory/test_hostile_cache.py"
FOLDERS: Final = "dag_factory/test_costly_folders.py"
LOGS: Final = "triggers/test_hostile_logs.py"
RESTRICTED: Final = "hooks/restricted/test_programs.py"
RESTRICT: Final = "cli/setup/test_cluster_restrict.py"
PRINTED: Final = "slurm/states/test_printed_forms.py"
RECORDED_OUTPUT: Final = "slurm/states/test_recorded_output.py"
POLLING: Final = "slurm/polling/test_polling.py"
STORABLE: Final = "triggers/test_storable_events.py"
HYDRA: Final = "spec/dialects/test_oellm_import.py::test_hydra_reads_only_what_a_spec_may"
COSTLY_LOOKS: Final = "triggers/test_costly_looks.py"
PATTERNS: Final = "trust/test_patterns_of_users.py"
PRIVATE: Final = "cli/local/test_private_files.py"
RUNS: Final = "trust/test_run_configurations.py"
SECRETS: Final = "trust/test_secrets.py"
NAMES: Final = "slurm/remote/test_hostile_names.py"
FORM: Final = "trust/test_trigger_form.py"
WATCHING: Final = "trust/test_bounded_watching.py"
BOMBS: Final = "trust/test_bombs.py"
LARGE_RECORDS: Final = "slurm/remote/test_large_records.py"
CHECKPOINTS: Final = "megatron/checkpoints/test_hostile_checkpoints.py"
RECORDS: Final = "results/test_hostile_records.py"
HOST_KEYS: Final = "hooks/test_slurm_hook.py"
OPTIONS: Final = "trust/test_sbatch_options.py"
TERMINAL: Final = "cli/test_control_characters.py"

FIXES: Final = (
    Fix(
        "C1",
        "Airflow's own templates in what jobs write",
        "notifications/notices.py",
        "notifier(**arguments).notify(values)",
        "notifier(**arguments)(values)",
        (f"{NOTIFIERS}::test_output_of_jobs_is_not_a_template",),
    ),
    Fix(
        "C1",
        "a notifier whose server never answers",
        "notifications/notices.py",
        "thread.join(NOTIFIER_SECONDS)",
        "thread.join()",
        ("notifications/test_notices.py::test_notifier_that_hangs_delays_nothing",),
    ),
    Fix(
        "C1",
        "names besides the notice",
        "notices/notifier_classes.py",
        'for name in sorted(template_names(value) - {"notice"}):',
        "for name in ():",
        (f"{NOTIFIERS}::test_expressions_read_the_notice_only",),
    ),
    Fix(
        "C1",
        "classes that nobody allows",
        "notices/notifier_classes.py",
        "if path not in allowed:",
        "if False:",
        (f"{NOTIFIERS}::test_classes_that_are_not_allowed_are_not_imported",),
    ),
    Fix(
        "C1",
        "connections that nobody allows",
        "notices/notifier_classes.py",
        "elif _CONNECTION.search(name) and",
        "elif False and",
        (f"{NOTIFIERS}::test_connections_that_are_not",),
    ),
    Fix(
        "C1",
        "connections of trackers that nobody allows",
        "spec/trackers/permitted_connections.py",
        "if connection in permitted:",
        "if connection:",
        (f"{TRACKERS}::test_other_connections_are_refused_with_file_and_line_and_never_looked_up",),
    ),
    Fix(
        "C1",
        "a tracker whose answer does not end",
        "results/trackers/json_api.py",
        "if len(content) > LARGEST_ANSWER or time.monotonic() > end:",
        "if False:",
        (f"{TRACKERS}::test_no_answer_holds_the_push",),
    ),
    Fix(
        "C2",
        "paths out of the folder",
        "notices/notice_files.py",
        "    parts = notice_path_parts(path)\n    content",
        "    with Path(notices_dir(), path).expanduser().open('a') as opened:\n"
        "        opened.write(line)\n    return\n    content",
        (f"{NOTIFIERS}::test_paths_that_lead_elsewhere", f"{NOTIFIERS}::test_paths_that_jobs_make"),
    ),
    Fix(
        "C2",
        "links in the folder",
        "notices/notice_files.py",
        "flags | os.O_NOFOLLOW | os.O_CLOEXEC",
        "flags | os.O_CLOEXEC",
        (f"{NOTIFIERS}::test_links_are_not_followed",),
    ),
    Fix(
        "C3",
        "variables of the process",
        "spec/trust/permitted_variables.py",
        "        if name in self._names:\n            return True\n",
        "        return True\n",
        (
            f"{ENVIRONMENT}::test_no_variable_is_read_anywhere",
            f"{ENVIRONMENT}::test_profiles_read_no_variable_either",
        ),
    ),
    Fix(
        "C3",
        "patterns that permit secrets",
        "spec/trust/permitted_variables.py",
        "        if _NEVER_BY_PATTERN.match(name):\n            return False\n",
        "",
        (f"{ENVIRONMENT}::test_no_pattern_permits_a_secret",),
    ),
    Fix(
        "C4",
        "files of the host",
        "spec/documents/named_files.py",
        "    if not below:\n",
        "    if not below:\n        return\n    if False:\n",
        (f"{FILES}::test_no_private_file_is_read",),
    ),
    Fix(
        "C4",
        "devices and pipes",
        "spec/documents/named_files.py",
        "        if not stat.S_ISREG(status.st_mode):\n",
        "        if False:\n",
        (
            f"{FILES}::test_anything_but_a_regular_file_is_not_read",
            f"{FILES}::test_a_spec_is_a_regular_file_in_its_folder",
        ),
    ),
    Fix(
        "C4",
        "private files under another name",
        "spec/documents/named_files.py",
        "        if roots and status.st_nlink > 1 and not status.st_mode & stat.S_IROTH:\n",
        "        if False:\n",
        (f"{FILES}::test_no_private_file_is_read_under_another_name",),
    ),
    Fix(
        "C4",
        "hidden files",
        "spec/documents/named_files.py",
        "    if all(map(_is_hidden, below)):\n",
        "    if False:\n",
        (f"{FILES}::test_no_hidden_file_is_read",),
    ),
    Fix(
        "H1",
        "names that Airflow refuses",
        "spec/spec_files.py",
        "    if problems := list(name_problems(sweep)):\n        raise SpecError(problems)\n",
        "",
        (f"{ISOLATION}::test_each_is_refused_by_itself",),
    ),
    Fix(
        "H1",
        "errors of millions of characters",
        "dag_factory/spec_folder.py",
        "one = replace(problem, message=_shown(problem.message), hint=_shown(problem.hint))",
        "one = problem",
        (f"{ISOLATION}::test_each_is_refused_by_itself",),
    ),
    Fix(
        "H2",
        "what ends the process",
        "spec/trust/isolation.py",
        "    child = os.fork()\n",
        "    child = os.fork() if False else 0\n",
        (f"{ISOLATION}::test_any_end_of_the_reading_process",),
    ),
    Fix(
        "H2",
        "processor time of a spec",
        "spec/trust/isolation.py",
        "    signal.setitimer(signal.ITIMER_PROF, limits.processor_s)\n",
        "",
        (f"{ISOLATION}::TestTime", f"{ISOLATION}::test_any_end_of_the_reading_process"),
    ),
    Fix(
        "H2",
        "files that block whoever opens them",
        "dag_factory/spec_cache.py",
        "os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC",
        "os.O_RDONLY | os.O_CLOEXEC",
        (f"{FOLDERS}::TestFilesThatBlock",),
    ),
    Fix(
        "H2",
        "sidecars of many files that do not exist",
        "spec/spec_files.py",
        "MOST_COMPARED: Final = 500",
        "MOST_COMPARED: Final = 10**9",
        (f"{FOLDERS}::TestLoneSidecars",),
    ),
    Fix(
        "H3",
        "lines that never end",
        "megatron/logs/line_lengths.py",
        "LONGEST_LINE: Final = 4096",
        "LONGEST_LINE: Final = 1 << 30",
        (f"{LOGS}::test_a_line_that_never_ends_takes_no_memory",),
    ),
    Fix(
        "H3",
        "lazy patterns with a tail",
        "megatron/logs/checkpoint_lines.py",
        "        stands = _AT_ITERATION.search(rest)\n",
        '        stands = re.search(rb".*? at iteration (\\d+)$", rest)\n',
        (f"{LOGS}::test_no_log_holds_the_loop",),
    ),
    Fix(
        "H4",
        "patterns that take for ever",
        "spec/trust/patterns.py",
        "    import re2  # takes longer to import than most commands run\n",
        "    return re.compile(source)\n",
        (
            f"{PATTERNS}::test_no_pattern_holds_the_loop",
            f"{PATTERNS}::test_patterns_that_need_more_are_refused_in_lint",
        ),
    ),
    Fix(
        "H5",
        "files open to others",
        "cli/local/private_files.py",
        "            path.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS)\n",
        "            pass\n",
        (PRIVATE,),
    ),
    Fix(
        "H5",
        "a page open to others",
        "cli/local/local_airflow.py",
        'LOOPBACK = "127.0.0.1"',
        'LOOPBACK = "0.0.0.0"',
        (f"{PRIVATE}::test_the_page_listens_on_this_machine_only_by_default",),
    ),
    Fix(
        "H6",
        "jobs in a run's configuration",
        "operators/resolve_point.py",
        '        if "jobs" in conf:\n',
        "        if False:\n",
        (f"{RUNS}::test_jobs_of_their_own",),
    ),
    Fix(
        "H6",
        "unknown keys and values",
        "task_runtime/run_configuration.py",
        "    names = sorted(known)\n",
        "    return\n    names = sorted(known)\n",
        (f"{RUNS}::test_keys_that_nothing_reads", f"{RUNS}::test_values_of_a_sweeps_run"),
    ),
    Fix(
        "H6",
        "profiles elsewhere",
        "spec/model/cluster_profile.py",
        "    return _NAME.fullmatch(name) is not None\n",
        "    return True\n",
        (f"{RUNS}::test_profiles_are_named_by_words",),
    ),
    Fix(
        "H7",
        "secrets in plain text",
        "spec/trust/secret_names.py",
        "    if not is_secret_name(name) or _SWITCH.fullmatch(value):\n        return False\n",
        "    return False\n",
        (f"{SECRETS}::test_plain_secrets_are_refused_and_not_repeated",),
    ),
    Fix(
        "H7",
        "secret files that others read",
        "slurm/remote/shell/job_secret.sh",
        '    elif [ "${am_secret_mode%00}" = "$am_secret_mode" ]; then\n',
        "    elif false; then\n",
        (f"{SECRETS}::test_only_a_private_file_is_read",),
    ),
    Fix(
        "H7",
        "secrets in a traced log",
        "slurm/remote/shell/job_secret.sh",
        "  { set +x; } 2>/dev/null\n",
        "",
        (f"{SECRETS}::test_a_rendered_script_reads_the_secret",),
    ),
    Fix(
        "H8",
        "separators in files' names",
        "slurm/remote/framing.py",
        'lines = result.stdout.split("\\n")',
        "lines = result.stdout.splitlines()",
        (f"{NAMES}::test_files_of_one_job_change_nothing_of_another",),
    ),
    Fix(
        "H8",
        "rows in jobs' names",
        "slurm/remote/shell/poll.sh",
        'index(row, mark "|") != 1 { print unmarked " " row; next }',
        'index(row, mark "|") != 1 { print "Q " row; next }',
        (f"{NAMES}::test_the_name_of_one_job_changes_nothing_of_another",),
    ),
    Fix(
        "H3",
        "names and comments of jobs that look like fields",
        "slurm/states/controller_rows.py",
        r"(?P<name>.{0,1024}?) (?:HetJobIdSet=\S+ )?UserId=\S.{0,1024}? ",
        r"(?P<name>.*?) (?:HetJobIdSet=\S+ )?UserId=\S.*? ",
        (f"{PRINTED}::test_no_row_holds_the_loop",),
    ),
    Fix(
        "H3",
        "a comment that imitates the row of another job",
        "slurm/polling/poll.py",
        "    for job_id in different:\n        del answer.controller[job_id]\n",
        "",
        (f"{RECORDED_OUTPUT}::test_a_comment_that_looks_like_the_row_of_another_job_does_not_change_it",),
    ),
    Fix(
        "H8",
        "records that block their readers",
        "slurm/remote/shell/poll.sh",
        "sleep 10 &",
        "sleep 100 &",
        (f"{POLLING}::test_a_file_that_blocks_its_readers_spoils_no_verdict",),
    ),
    Fix(
        "H8",
        "commands that ignore the signal to end",
        "slurm/remote/shell/poll.sh",
        'timeout -k 2 "$am_seconds" bash',
        'timeout "$am_seconds" bash',
        (f"{POLLING}::test_a_command_that_does_not_end_delays_a_poll_only_briefly",),
    ),
    Fix(
        "H8",
        "arrays of millions of tasks",
        "slurm/polling/poll.py",
        " if arrays is None or array in arrays else (row.job_id,):",
        ":",
        (f"{POLLING}::test_a_huge_array_of_another_job_takes_no_time",),
    ),
    Fix(
        "H8",
        "paths and commands that no script can hold",
        "slurm/states/observation.py",
        "            checked_text(command)\n",
        "            pass\n",
        (f"{POLLING}::test_invalid_watches_are_refused",),
    ),
    Fix(
        "H8",
        "folders of another restricted key of the account",
        "cli/setup/restricted_key.py",
        "hashlib.sha256(key.split()[1].encode())",
        "hashlib.sha256()",
        (f"{RESTRICT}::test_each_key_keeps_its_own_folders",),
    ),
    Fix(
        "H8",
        "links of a job that the restricted key may not follow",
        "hooks/restricted/programs.py",
        """"am_one_liners" + many(f" {word('rest-or-nothing')}"),""",
        """"am_one_liners" + many(f" {word('rest')}"),""",
        (f"{RESTRICTED}::test_a_link_of_one_job_stops_no_other",),
    ),
    Fix(
        "L",
        "formulas after a semicolon in CSV files",
        "results/tables/text.py",
        "    cell = _AFTER_SEPARATOR.sub(",
        "    _ = _AFTER_SEPARATOR.sub(",
        (f"{RECORDS}::test_no_part_of_a_cell_is_a_formula",),
    ),
    Fix(
        "H8",
        "events that PostgreSQL refuses",
        "task_runtime/deferring_trigger.py",
        "payload = storable(event.payload)",
        "payload = event.payload",
        (f"{STORABLE}::test_events_of_any_line", f"{STORABLE}::test_ends_with_any_record"),
    ),
    Fix(
        "H8",
        "records that PostgreSQL refuses",
        "spec/trust/json_records.py",
        "return storable(value) if escaped else value",
        "return value",
        (f"{STORABLE}::test_texts_of_records_can_be_stored",),
    ),
    Fix(
        "H8",
        "patterns for a whole file system",
        "slurm/remote/shell/poll.sh",
        'timeout "$am_seconds" sh -c "ulimit',
        'sh -c "ulimit',
        (f"{NAMES}::test_a_pattern_for_the_whole_file_system_delays_no_job",),
    ),
    Fix(
        "M1",
        "sizes in expressions",
        "spec/expressions/sandbox.py",
        "MAX_ITEMS: Final = 10_000",
        "MAX_ITEMS: Final = 1 << 60",
        (f"{BOMBS}::test_expressions",),
    ),
    Fix(
        "M1",
        "work of expressions",
        "spec/expressions/bounds.py",
        "    if _account.steps > _account.allowed:\n",
        "    if False:\n",
        (f"{BOMBS}::test_loops", f"{BOMBS}::test_many_expensive_expressions"),
    ),
    Fix(
        "M2",
        "numbers in oc.eval",
        "spec/foreign/interpolation/eval.py",
        "MAX_BITS = 10_000",
        "MAX_BITS = 1 << 60",
        (f"{BOMBS}::test_oellm_files",),
    ),
    Fix(
        "M2",
        "numbers of AutoExperiment files",
        "spec/foreign/omegaconf_yaml.py",
        "MAX_NUMBER = 1000",
        "MAX_NUMBER = 10**9",
        (f"{BOMBS}::test_autoexperiment_files",),
    ),
    Fix(
        "M3",
        "ranks in checkpoints' names",
        "megatron/checkpoints/legacy.py",
        "        if max(tensor, pipeline, expert) <= len(there) and any(\n",
        "        if any(\n",
        (f"{CHECKPOINTS}::test_no_listing_takes_long",),
    ),
    Fix(
        "M3",
        "pickles that take for ever",
        "megatron/checkpoints/evidence_reader.py",
        "        signal.setitimer(signal.ITIMER_PROF, seconds + SECONDS_PER_GIB * size / 2**30)\n",
        "        del size\n",
        (f"{CHECKPOINTS}::test_no_pickle_takes_all_time_or_memory",),
    ),
    Fix(
        "M4",
        "numbers in records",
        "spec/trust/json_records.py",
        "    if isinstance(value, float):\n        value = int(value) if math",
        "    return int(value)\n    if True:\n        value = int(value) if math",
        (RECORDS,),
    ),
    Fix(
        "H8",
        "records that are nested very deeply",
        "spec/trust/json_records.py",
        "    except (ValueError, RecursionError):\n        return None\n\n\ndef read_object",
        "    except ValueError:\n        return None\n\n\ndef read_object",
        (RECORDS,),
    ),
    Fix(
        "M4",
        "names of tasks that are formulas of figures",
        "results/plots/figures.py",
        '.replace("$", r"\\$")',
        "",
        (f"{RECORDS}::test_names_of_tasks_are_drawn_as_they_are",),
    ),
    Fix(
        "M5",
        "the divisors of enormous values",
        "megatron/rules/nearest.py",
        "    if value <= _FARTHEST**2:\n",
        "    if value:\n",
        (f"{BOMBS}::test_the_nearest_divisors_of_any_value", f"{BOMBS}::test_arguments_of_any_size"),
    ),
    Fix(
        "M6",
        "host keys that nobody checks",
        "hooks/asyncssh_transport.py",
        '        chosen["known_hosts"] = _usual_known_hosts(chosen)\n',
        "        pass\n",
        (f"{HOST_KEYS}::test_no_configuration_switches_host_keys_off",),
    ),
    Fix(
        "M6",
        "logins without the options of their connection",
        "hooks/openssh_transport.py",
        '            folder = tempfile.TemporaryDirectory(prefix="airflow-megatron-", dir="/tmp")\n',
        '            folder = self._folder = tempfile.TemporaryDirectory(prefix="airflow-megatron-", dir="/tmp")\n',
        (f"{HOST_KEYS}::TestRunning::test_refused_credentials_are_refused_again",),
    ),
    Fix(
        "M7",
        "options that the submission owns",
        "slurm/submission/sbatch_options.py",
        "        elif name is not None and not (own_script and _is_harmless(option)):\n",
        "        elif False:\n",
        (f"{OPTIONS}::test_what_the_submission_owns_is_refused",),
    ),
    Fix(
        "M7",
        "options in the words of PBS",
        "slurm/submission/single_job.py",
        '        "--ignore-pbs",',
        "        # ",
        (f"{OPTIONS}::test_options_of_other_schedulers_are_not_read",),
    ),
    Fix(
        "M7",
        "options after indented comments",
        "slurm/submission/sbatch_options.py",
        'line.lstrip(_BLANKS)[:1] not in ("", "#")',
        'line[:1] not in ("", "#")',
        (f"{OPTIONS}::test_options_stand_where_sbatch_looks_for_them",),
    ),
    Fix(
        "L",
        "formulas in tables",
        "results/tables/text.py",
        """        return "'" + cell\n""",
        "        return cell\n",
        (f"{RECORDS}::test_no_cell_is_a_formula",),
    ),
    Fix(
        "L",
        "run directories out of the root",
        "spec/dialects/autoexperiment/dialect.py",
        'message = f"RUN_DIR {given!r} leaves the run root {root}"\n',
        'return "/tmp"\n',
        (f"{BOMBS}::test_a_run_directory_stays_below_the_root",),
    ),
    Fix(
        "L",
        "links in the place of reports",
        "ui/live/result_folders.py",
        "    return not path.is_symlink() and report.is_file() and not report.is_symlink()\n",
        "    return report.is_file()\n",
        (f"{RECORDS}::test_links_are_not_followed",),
    ),
    Fix(
        "L",
        "escapes on the terminal",
        "spec/trust/plain_text.py",
        'return text if text.isprintable() else "".join(map(_shown, text))',
        "return text",
        (TERMINAL,),
    ),
    Fix(
        "L",
        "hidden files",
        "spec/spec_files.py",
        '                if entry.name.startswith("."):\n',
        "                if False:\n",
        (f"{ISOLATION}::test_specs_of_sub_folders_carry_their_folders_as_tags",),
    ),
    Fix(
        "H2",
        "very many files in a folder",
        "spec/spec_files.py",
        "len(paths) > MOST_FILES or",
        "",
        (f"{ISOLATION}::test_a_crowded_folder_has_an_error_and_changes_no_other_sweep",),
    ),
    Fix(
        "H2",
        "very many specs in one sub-folder",
        "dag_factory/spec_folder.py",
        "in_turn(folder, set(files) - set(cut_off))",
        "sorted(set(files) - set(cut_off))",
        (f"{ISOLATION}::test_many_files_of_another_folder_do_not_come_first",),
    ),
    Fix(
        "H2",
        "pipes and devices in a folder that is searched for a name",
        "cli/plans/spec_options.py",
        "named.search(read_spec_file(file))",
        'named.search(file.read_text(encoding="utf-8", errors="replace"))',
        ("cli/plans/test_spec_commands.py::TestNamesOfSweeps",),
    ),
    Fix(
        "M1",
        "costly specs that mention another sweep's name",
        "plan/repeated_names.py",
        "Limits(EACH_S, clock_s=4 * EACH_S, idle_s=EACH_S)",
        "Limits(60)",
        ("plan/test_sweep_owners.py::test_costly_files_that_mention_the_name_do_not_count",),
    ),
    Fix(
        "H8",
        "long names of the paths that match a pattern",
        "slurm/remote/shell/poll.sh",
        " ulimit -f $am_blocks;",
        "",
        (f"{NAMES}::test_patterns_with_long_answers_are_left_out",),
    ),
    Fix(
        "H8",
        "many patterns with many paths",
        "slurm/remote/shell/poll.sh",
        "(sum += $1) <= most",
        "1",
        (f"{NAMES}::test_patterns_with_long_answers_are_left_out",),
    ),
    Fix(
        "H8",
        "many checkpoints with long names",
        "slurm/remote/shell/poll.sh",
        "        if (sum <= most_in_all) break\n",
        "        break\n",
        (f"{NAMES}::test_checkpoints_with_long_names_are_left_out",),
    ),
    Fix(
        "L",
        "marks that reorder the page in values of sweeps",
        "ui/live/point_table.py",
        "    return shown(str(value))",
        "    return str(value)",
        ("ui/test_hostile_results.py::test_a_value_of_a_sweep_does_not_reorder_the_page",),
    ),
    Fix(
        "M4",
        "counts in logs that are no whole numbers",
        "megatron/logs/iteration_lines.py",
        "        if _is_number(text) and (name not in _COUNTS or _count(text) is not None):\n",
        "        if _is_number(text):\n",
        (
            f"{RECORDS}::test_a_report_survives_every_number_in_a_log",
            "megatron/logs/test_log_lines.py::test_a_count_that_is_none_costs_that_field_alone",
        ),
    ),
    Fix(
        "M4",
        "stored numbers that are too large for the pages",
        "results/store/line_numbers.py",
        "pl.col(name).cast(kind, strict=False)",
        "pl.col(name).cast(kind)",
        ("results/store/test_view.py::test_numbers_too_large_are_missing",),
    ),
    Fix(
        "M4",
        "numbers too large for the table in Parquet",
        "results/report/table_files.py",
        "    except pl.exceptions.ComputeError:  # a whole number has more than 128 bits\n",
        "    except pl.exceptions.NoDataError:\n",
        (f"{RECORDS}::test_a_parameter_too_large_for_parquet",),
    ),
    Fix(
        "M4",
        "large sparse results",
        "results/readings/snapshot.py",
        "(bytes += length($0)) > {MOST_OF_FILES} {{ exit 1 }}",
        "",
        ("results/test_snapshot.py::test_large_results_are_left_out",),
    ),
    Fix(
        "M4",
        "logs that are one line of any length",
        "results/readings/snapshot.py",
        "    ulimit -v {MOST_MEMORY_KB} 2>/dev/null\n    for log in {LOGS}",
        "    for log in {LOGS}",
        ("results/test_snapshot.py::test_a_file_that_is_one_long_line_takes_little_memory",),
    ),
    Fix(
        "M4",
        "links to folders in the place of records",
        "slurm/verdicts/stage_records.py",
        "mv -fT ",
        "mv -f ",
        ("slurm/verdicts/test_stage_records.py::test_a_folder_in_the_place_of_a_record_gets_no_file",),
    ),
    Fix(
        "M4",
        "links that take the place of a folder during its removal",
        "slurm/remote/shell/run_folders.sh",
        '"$(pwd -P)" != "${am_here%/}/${am_one#./}"',
        "-n ''",
        ("slurm/remote/test_run_folders.py::test_a_link_that_takes_the_place_of_a_checked_folder",),
    ),
    Fix(
        "M4",
        "times that no calendar has",
        "results/store/frames.py",
        "seconds = seconds.set(",
        "_ = seconds.set(",
        ("results/test_hostile_records.py::test_times_of_an_exit_record_that_no_calendar_has",),
    ),
    Fix(
        "M4",
        "rows of one job that keep those of others from being stored",
        "results/store/writer.py",
        "written = self._segments(sweep, table, group)",
        "continue",
        (
            "results/store/test_result_writer.py::test_rows_that_cannot_be_stored_cost_only_those_of_their_log",
        ),
    ),
    Fix(
        "M4",
        "any number of logs",
        "results/readings/snapshot.py",
        "(bytes += length($0)) > {MOST_OF_LOGS} {{ exit 1 }}",
        "",
        ("results/test_snapshot.py::test_any_number_of_logs_has_a_limit",),
    ),
    Fix(
        "M4",
        "GPU samples with infinite numbers",
        "slurm/submission/gpu_samples.py",
        "map(whole, cells[:2])",
        "(int(float(cell)) for cell in cells[:2])",
        ("results/test_snapshot.py::test_forged_gpu_samples_are_ignored",),
    ),
    Fix(
        "C4",
        "files outside of a Hydra configuration",
        "spec/hydra_limits.py",
        '            raise RefusedReadError(f"{config_path}: {error}',
        '            return load(source, config_path)\n            raise RefusedReadError(f"{config_path}: {error}',
        (HYDRA,),
    ),
    Fix(
        "C4",
        "packages and folders that a Hydra configuration searches",
        "spec/hydra_limits.py",
        "OmegaConf.select(result.config, _SEARCH_PATH) is not None",
        "False",
        (HYDRA,),
    ),
    Fix(
        "C3",
        "variables in a defaults list of Hydra",
        "spec/hydra_limits.py",
        "permitted_variables() if environment is None else environment",
        "os.environ",
        (HYDRA,),
    ),
    Fix(
        "L",
        "control characters in the difference of two specs",
        "cli/plans/difference_table.py",
        "else shown(format_value(value))",
        "else format_value(value)",
        ("cli/plans/test_spec_commands.py::TestDiff::test_control_characters_do_not_reach_the_terminal",),
    ),
    Fix(
        "H2",
        "large files that every parse reads",
        "dag_factory/spec_cache.py",
        "file.read(LARGEST_HASHED + 1)",
        "file.read()",
        (f"{FOLDERS}::TestLargeFiles::test_take_no_time",),
    ),
    Fix(
        "H2",
        "errors that list all files of one name",
        "plan/sweep_owners.py",
        "MOST_RIVALS: Final = 5",
        "MOST_RIVALS: Final = 10**9",
        (f"{FOLDERS}::TestOneNameInManyFiles",),
    ),
    Fix(
        "H2",
        "errors that hide those of other files",
        "dag_factory/spec_files.py",
        "MOST_SHOWN: Final = 200_000",
        "MOST_SHOWN: Final = 10**9",
        (f"{FOLDERS}::TestErrors",),
    ),
    Fix(
        "H1",
        "more stages than Airflow builds in time",
        "dag_factory/spec_folder.py",
        "if outline.weight <= left:",
        "if True:",
        (f"{FOLDERS}::TestManyStages::test_those_that_were_read_last_are_left_out",),
    ),
    Fix(
        "H1",
        "arguments of notifiers that every task reads",
        "spec/model/dag_names.py",
        "if size > MAX_ARGUMENTS:",
        "if False:",
        (f"{FOLDERS}::test_data_that_every_task_reads_is_small",),
    ),
    Fix(
        "H1",
        "stages that wait for very many others",
        "spec/model/dag_names.py",
        "MAX_WAITS: Final = 10_000",
        "MAX_WAITS: Final = 10**9",
        (f"{CACHE}::TestStagesThatWait",),
    ),
    Fix(
        "H1",
        "dependencies that count for nothing",
        "spec/model/outline.py",
        "return len(self.tree) + waits(self.tree) // 30",
        "return len(self.tree)",
        (f"{CACHE}::TestStagesThatWait",),
    ),
    Fix(
        "H2",
        "files of one name that make tasks read all specs",
        "dag_factory/own_sweep.py",
        "entry = cache.valid(Path(owner)) if owner else None",
        "entry = None",
        (f"{CACHE}::TestOthersOfOneName",),
    ),
    Fix(
        "H2",
        "large entries that every task loads",
        "dag_factory/spec_cache.py",
        '        self._heads[str(file)] = {**head, "body": name}\n',
        '        self._heads[str(file)] = {**head, "body": name, "text": text}\n',
        (f"{CACHE}::test_tasks_of_others_load_a_line_for_each_spec",),
    ),
    Fix(
        "H2",
        "names of files in the cache's index",
        "dag_factory/spec_cache.py",
        "        if hashlib.sha256(text.encode()).hexdigest() != name:\n            raise ValueError(name)\n",
        "",
        (f"{CACHE}::TestFiles",),
    ),
    Fix(
        "H2",
        "very many files that every parse compares",
        "dag_factory/spec_folder.py",
        "MOST_READ: Final = 200",
        "MOST_READ: Final = 10**6",
        (f"{CACHE}::test_a_spec_that_reads_very_many_files_is_refused",),
    ),
    Fix(
        "H2",
        "errors that every parse loads",
        "dag_factory/spec_folder.py",
        "MAX_MESSAGES: Final = 30_000",
        "MAX_MESSAGES: Final = 10**9",
        (f"{CACHE}::test_many_errors_of_one_spec_take_little_room",),
    ),
    Fix(
        "H8",
        "large copies of a record",
        "slurm/remote/shell/exit_record.sh",
        "-type f -size +0 -size -17",
        "-size +0",
        (f"{LARGE_RECORDS}::test_the_copy_of_a_damaged_record",),
    ),
    Fix(
        "H8",
        "large verdicts of a sweep",
        "slurm/remote/shell/finished_stages.sh",
        "-type f -size -129",
        "-size +0",
        (f"{LARGE_RECORDS}::test_verdicts_of_a_sweep",),
    ),
    Fix(
        "H8",
        "large records of a stage",
        "slurm/remote/shell/stage_state.sh",
        "-size +2048",
        "-size +99999999",
        (f"{LARGE_RECORDS}::test_records_of_a_stage",),
    ),
    Fix(
        "H8",
        "answers without end",
        "hooks/asyncssh_transport.py",
        "if size > limits.LONGEST_ANSWER:",
        "if False:",
        (f"{HOST_KEYS}::TestRunning::test_an_answer_that_is_too_long",),
    ),
    Fix(
        "H8",
        "large records in the folders of an attempt",
        "slurm/remote/shell/stage_state.sh",
        "-maxdepth 3 -size",
        "-maxdepth 2 -size",
        (f"{LARGE_RECORDS}::test_records_of_a_stage",),
    ),
    Fix(
        "H8",
        "links whose targets look like records of another stage",
        "slurm/remote/shell/stage_state.sh",
        'case $am_line in *"$am_newline"*) ;; *)',
        "case $am_line in *)",
        (f"{NAMES}::test_links_of_one_job_change_no_record_of_another",),
    ),
    Fix(
        "H4",
        "searches that hold the loop",
        "task_runtime/condition_follower.py",
        "if work <= MOST_WORK:",
        "if True:",
        (f"{COSTLY_LOOKS}::test_events", f"{COSTLY_LOOKS}::test_conditions"),
    ),
    Fix(
        "H4",
        "any number of events",
        "checks/sweeps/patterns.py",
        "MAX_EVENTS: Final = 100\n",
        "MAX_EVENTS: Final = 10**9\n",
        (f"{WATCHING}::test_native_specs",),
    ),
    Fix(
        "H4",
        "any number of conditions",
        "checks/sweeps/patterns.py",
        "MAX_CONDITIONS: Final = 100\n",
        "MAX_CONDITIONS: Final = 10**9\n",
        (f"{WATCHING}::test_native_specs",),
    ),
    Fix(
        "H4",
        "any number of large patterns",
        "checks/sweeps/patterns.py",
        "MAX_STEPS: Final = 5_000\n",
        "MAX_STEPS: Final = 10**9\n",
        (f"{WATCHING}::test_native_specs",),
    ),
    Fix(
        "M1",
        "compilation of expressions",
        "spec/expressions/resolution.py",
        "        charge_compilation(tokens_of(source))\n",
        "",
        (f"{BOMBS}::test_many_different_expressions_are_compiled",),
    ),
    Fix(
        "M1",
        "constant folding, which takes cubic time",
        "spec/expressions/sandbox.py",
        "    generator.optimizer = None\n",
        "",
        ("spec/expressions/test_bounds.py::test_names_of_long_expressions_are_found_at_once",),
    ),
    Fix(
        "M1",
        "work of long expressions",
        "spec/expressions/resolution.py",
        "begin_evaluation(expression.size)",
        "begin_evaluation()",
        (f"{BOMBS}::test_long_expressions_of_many_points",),
    ),
    Fix(
        "M1",
        "work of the bodies of loops",
        "spec/expressions/sandbox.py",
        "    charge_parts(size * len(items))\n",
        "",
        (f"{BOMBS}::test_loops",),
    ),
    Fix(
        "M1",
        "patterns in a choice of points",
        "plan/point_choice.py",
        "if longest > MAX_PATTERN or len(patterns) > MAX_PATTERNS:",
        "if False:",
        (f"{FORM}::test_a_choice_of_points_costs_little_and_shows_nothing",),
    ),
    Fix(
        "C1",
        "values of a run as templates",
        "dag_factory/sweep_dag.py",
        "points=\"{{ '%r' | format(params.points or '') }}\",",
        "points=\"{{ params.points or '' }}\",",
        (f"{FORM}::test_a_choice_of_points_reaches_the_task_as_it_was_written",),
    ),
    Fix(
        "C3",
        "variables that profiles read",
        "spec/model/cluster_profile.py",
        '"env": dict(permitted_variables()),',
        '"env": dict(__import__("os").environ),',
        (f"{FORM}::test_expressions_of_profiles",),
    ),
    Fix(
        "H6",
        "ids of runs that are paths",
        "plan/pins/pin_store.py",
        'return self.root / "runs" / _file_name(dag_id) / _file_name(run_id)',
        'return self.root / "runs" / _file_name(dag_id) / run_id',
        (f"{FORM}::test_records_of_runs_stay_in_their_folder",),
    ),
    Fix(
        "L",
        "images on pages of DAGs",
        "spec/trust/plain_text.py",
        'return text.replace("![", "!\\\\[")',
        "return text",
        (f"{FORM}::test_pages_of_dags_load_nothing_that_a_description_names",),
    ),
    Fix(
        "H1",
        "notes that end the scheduler",
        "ui/run_listener.py",
        "if len(new) > LONGEST_NOTE:",
        "if False:",
        ("ui/test_run_listener.py::test_notes_fit_into_the_database",),
    ),
    Fix(
        "H1",
        "configurations of runs that end the DAG processor",
        "ui/run_listener.py",
        "if (conf := sendable(dag_run.conf)) != dag_run.conf:",
        "if (conf := dag_run.conf) != dag_run.conf:",
        ("ui/test_run_listener.py::test_a_configuration_can_be_sent_between_airflows_processes",),
    ),
    Fix(
        "H8",
        "ids of jobs in XComs that no sacct can be asked for",
        "supervision/job_reference.py",
        "checked_job_id(self.job_id)",
        "pass",
        ("task_runtime/test_stored_plan.py::test_a_task_watches_no_job_of_another_sweep",),
    ),
    Fix(
        "H8",
        "ids of jobs that no argument can hold",
        "slurm/remote/quoting.py",
        'r"[0-9]{1,20}(?:[_+][0-9]{1,20})?"',
        'r"[0-9]+(?:[_+][0-9]+)?"',
        ("slurm/remote/test_quoting.py::test_not_job_ids",),
    ),
    Fix(
        "H6",
        "jobs in XComs of a new Airflow",
        "ui/run_listener.py",
        "            PinStore().begin()\n",
        "            pass\n",
        ("ui/test_run_listener.py::test_the_first_run_of_a_new_airflow_takes_no_job_from_an_xcom",),
    ),
    Fix(
        "L",
        "copies of tables in caches of proxies and browsers",
        "ui/app.py",
        'for kind in ("X-Content-Type-Options", "Cache-Control")}',
        'for kind in ("X-Content-Type-Options",)}',
        ("ui/test_pages.py::test_files_are_sent_as_downloads",),
    ),
    Fix(
        "H7",
        "keys in messages about connections",
        "hooks/connection_options.py",
        "        _check_texts(extra, conn_id)\n",
        "",
        (
            f"{HOST_KEYS}::TestCredentials::test_a_key_in_place_of_a_path_is_not_repeated",
            f"{HOST_KEYS}::TestCredentials::test_an_extra_that_is_not_a_text",
        ),
    ),
    Fix(
        "L",
        "names in results that no page can show",
        "ui/live/result_folders.py",
        "best=shown(best)[:_LONGEST_NAME],",
        "best=best,",
        ("ui/test_hostile_results.py::test_a_damaged_sweep_does_not_hide_the_list",),
    ),
    Fix(
        "L",
        "result tables of any size",
        "ui/live/result_folders.py",
        "and path.stat().st_size <= LARGEST_RECORD",
        "",
        ("ui/test_hostile_results.py::TestSizes::test_a_table_of_any_size_is_not_read",),
    ),
    Fix(
        "H6",
        "numbers of attempts in a run's configuration",
        "operators/slurm_submit.py",
        "one.number == number and (one.claimed or one.job_id)",
        "True",
        ("task_runtime/test_forged_attempts.py",),
    ),
)


def edited(fix: Fix, text: str) -> str:
    """Return a source file without a protection.

    :raises ValueError: when the file does not hold it, or not once
    """
    if text.count(fix.written) != 1:
        raise ValueError(
            f"{fix.file} does not hold {fix.written!r} once: the entry {fix.kind} has to follow it"
        )
    return text.replace(fix.written, fix.instead)


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, most))  # of the tests; their processes may raise it


def _copy(folder: Path) -> Path:
    """Copy the files that git tracks; the installed packages are those of this project."""
    project = folder / "project"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, os.fsdecode(listed).split("\0")):
        if (ROOT / name).is_file():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, project / name)
    return project


def outcome(fix: Fix, project: Path) -> str:
    """Run the tests of a protection without it; return the result: ``MISSED`` if they passed."""
    path = project / PACKAGE / fix.file
    text = path.read_text(encoding="utf-8")
    path.write_text(edited(fix, text), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-qx", "--no-header", "-p", "no:cacheprovider",
             *(f"tests/{test}" for test in fix.tests)],
            cwd=project, env=environment, capture_output=True, text=True, check=False,
            preexec_fn=_bounded, timeout=10 * SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "never ended"
    finally:
        path.write_text(text, encoding="utf-8")
    if done.returncode < 0:
        return "never ended"
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == 0 and " passed" not in last:
        return "ended the process of the tests"
    return "failed" if done.returncode == 1 and " failed" in last else f"MISSED: {last or done.stderr[-200:]}"


def main(kinds: list[str]) -> int:
    """Work through the protections; return how many are missed by their tests."""
    missed = 0
    with tempfile.TemporaryDirectory(prefix="without-fixes-") as folder:
        project = _copy(Path(folder))
        for fix in FIXES:
            if kinds and fix.kind not in kinds:
                continue
            found = outcome(fix, project)
            missed += found.startswith("MISSED")
            print(f"{fix.kind:3} {fix.what:40} {found}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
