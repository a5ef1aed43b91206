"""Chained attempts: each waits in Slurm's queue for the end of the earlier ones, so that a roll-over has no delay.

Each is submitted exactly once like any other attempt, with ``--dependency=afterany`` on the earlier jobs. The file
``chained`` in its directory holds its Slurm name. At its start, the job checks whether there is work left
(``shell/chain_guard.sh``). When the stage has ended, the attempts that are still queued are withdrawn: their jobs are
cancelled, newest first, and their directories renamed to ``<number>.withdrawn.<time>``, which frees the numbers.

swiss-ai's Megatron launcher and oellm-autoexp chain trainings with ``singleton`` and ``afterany``, without this check
and without the withdrawal.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.profile import DEFAULT_COMMANDS, SlurmCommands, slurm_functions
from airflow_megatron.slurm.remote.quoting import quote, quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError
from airflow_megatron.slurm.states.exit_codes import RERUN_EXIT_CODE

if TYPE_CHECKING:
    from airflow_megatron.slurm.remote.records import ExitRecord
    from airflow_megatron.slurm.verdicts.stage_records import StageRecord

RESUMABLE_EXIT_CODES = (0, RERUN_EXIT_CODE, 128 + signal.SIGTERM)
"""Exit codes after which a chained attempt runs: success, Megatron's request to be resumed, stop by a signal."""


def chain_prologue(previous_dir: str, tracker: str, train_iters: int) -> str:
    """Return the lines that follow the guard in a chained attempt's script.

    They end the job with status 0 if the training has finished, and with the status of the previous attempt if that
    attempt crashed. Otherwise they write the initial iteration of the attempt to ``began_at``.

    :param previous_dir: directory of the previous attempt
    :param tracker: Megatron's ``latest_checkpointed_iteration.txt``
    :param train_iters: the last iteration
    """
    return (
        f"am_previous_dir={quote_path(previous_dir)}\n"
        f"am_tracker={quote_path(tracker)}\n"
        f"am_train_iters={train_iters}\n"
        f"am_resumable_exit_codes={quote(' '.join(map(str, RESUMABLE_EXIT_CODES)))}\n"
        f"{shell_file('exit_record')}\n{shell_file('tracked_iteration')}\n{shell_file('chain_guard')}\n"
    )


def runs_after(record: ExitRecord | None) -> bool:
    """Return whether a chained attempt runs after this end of the previous attempt (``shell/chain_guard.sh``).

    :param record: the ``exit.json`` of the previous attempt; None if it was killed without warning
    """
    return record is None or record.signal is not None or record.exit_code in RESUMABLE_EXIT_CODES


def withdraw_chain_script(stage_dir: str, after: int, commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that withdraws the chained attempts of a stage; it is idempotent.

    :param stage_dir: ``<run_dir>/.jobs/<stage>``
    :param after: number of the last attempt that is not withdrawn
    """
    return framed(
        f"{slurm_functions(commands)}\n"
        f"am_stage_dir={quote_path(stage_dir.rstrip('/'))}\nam_after={after}\n"
        f"{shell_file('withdraw_chain')}"
    )


def parse_withdrawn(result: CommandResult) -> list[int]:
    """Return the numbers of the withdrawn attempts, ascending.

    :raises TransportError: if the queue could not be read, a directory not renamed, or the output is incomplete
    """
    numbers: list[int] = []
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"queued attempts could not be withdrawn: {rest}")
        if word == "withdrawn":
            try:
                numbers.append(int(rest))
            except ValueError:
                raise TransportError(f"unexpected line in an answer: {line!r}") from None
    return sorted(numbers)


def current_attempt(state: StageRecord) -> int:
    """Return the number of the current attempt: the newest one that is not queued behind another; 0 for none.

    :param state: recorded state of the stage
    """
    attempts = list(state.attempts)
    while len(attempts) > 1 and attempts[-1].chained and attempts[-2].verdict is None:
        attempts.pop()
    return attempts[-1].number if attempts else 0
