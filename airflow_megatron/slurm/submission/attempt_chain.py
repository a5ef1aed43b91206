"""Attempts that wait in Slurm's own queue for the one before to end, so that a roll-over waits for nobody.

Each is submitted exactly once like any other attempt, with ``--dependency=afterany`` on the job before it. It has a
file ``chained`` in its directory, which holds its Slurm name. At its start it looks whether there is anything left to
do (``shell/chain_guard.sh``). When the job is over, what is still queued is withdrawn: cancelled, newest first, and its
directory renamed to ``<number>.withdrawn.<time>``, so that the number is free again.

swiss-ai's Megatron launcher and oellm-autoexp chain trainings with ``singleton`` and ``afterany``, without either.
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
    from airflow_megatron.slurm.remote.stage_records import StageRecord

RESUMABLE_EXIT_CODES = (0, RERUN_EXIT_CODE, 128 + signal.SIGTERM)
"""Exit codes after which a chained attempt runs: done, Megatron asks to be resumed, stopped by a signal."""


def chain_prologue(previous_dir: str, tracker: str, train_iters: int) -> str:
    """Return the lines that a chained attempt's script has after the guard.

    They end the job with status 0 when training is done, and with the status of the attempt before when that crashed.
    Otherwise they note in ``began_at`` the iteration that it begins with.

    :param previous_dir: directory of the attempt before
    :param tracker: Megatron's ``latest_checkpointed_iteration.txt``
    :param train_iters: the last iteration
    """
    return (
        f"am_previous_dir={quote_path(previous_dir)}\n"
        f"am_tracker={quote_path(tracker)}\n"
        f"am_train_iters={train_iters}\n"
        f"am_resumable_exit_codes={quote(' '.join(map(str, RESUMABLE_EXIT_CODES)))}\n"
        f"{shell_file('chain_guard')}\n"
    )


def runs_after(record: ExitRecord | None) -> bool:
    """Return whether a chained attempt runs after one that has ended so (``shell/chain_guard.sh``).

    :param record: the ``exit.json`` of the attempt before; None of one that was killed without warning
    """
    return record is None or record.signal is not None or record.exit_code in RESUMABLE_EXIT_CODES


def withdraw_chain_script(stage_dir: str, after: int, commands: SlurmCommands = DEFAULT_COMMANDS) -> str:
    """Return the remote script that withdraws the chained attempts of a stage; safe to repeat.

    :param stage_dir: ``<run_dir>/.jobs/<stage>``
    :param after: number of the last attempt that stays
    """
    return framed(
        f"{slurm_functions(commands)}\n"
        f"am_stage_dir={quote_path(stage_dir.rstrip('/'))}\nam_after={after}\n"
        f"{shell_file('withdraw_chain')}"
    )


def parse_withdrawn(result: CommandResult) -> list[int]:
    """Return the numbers of the attempts that were withdrawn, ascending.

    :raises TransportError: if the queue could not be read, a directory not be renamed, or the answer is not whole
    """
    numbers: list[int] = []
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        if word == "failed":
            raise TransportError(f"queued attempts could not be withdrawn: {rest}")
        if word == "withdrawn":
            numbers.append(int(rest))
    return sorted(numbers)


def current_attempt(state: StageRecord) -> int:
    """Return the number of the attempt that is due: the newest, or the one that queued ones wait for; 0 for none.

    :param state: what is recorded of the stage
    """
    attempts = list(state.attempts)
    while len(attempts) > 1 and attempts[-1].chained and attempts[-2].verdict is None:
        attempts.pop()
    return attempts[-1].number if attempts else 0
