"""Conditions that stop a training before its last iteration: a signal, a time limit, or an iteration count."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from megatron_core_trainer.distributed import max_over_ranks

if TYPE_CHECKING:
    import argparse


class ExitConditions:
    """Handles the exit signal from its creation on, so that a signal during the construction of the model is not lost.

    :param args: the run's arguments.
    :param started: time of the program's start, seconds since the epoch.
    """

    def __init__(self, args: argparse.Namespace, started: float) -> None:
        self._args, self._started = args, started
        self._received = False
        if args.exit_signal_handler:
            signal.signal(args.exit_signal, self._receive)

    def _receive(self, number: int, frame: object) -> None:
        self._received = True

    def synchronize_start(self) -> None:
        """Use the start time of the first process in all processes."""
        self._started = -max_over_ranks(-self._started)[0]

    def after_iteration(self, iteration: int) -> str | None:
        """Return upstream's message if training stops after this iteration, None to continue.

        All processes get the same result.

        :param iteration: iterations done.
        """
        limit = self._args.exit_duration_in_mins
        minutes = (time.time() - self._started) / 60.0
        signalled, late = False, False
        if self._args.exit_signal_handler or limit is not None:
            most = max_over_ranks(
                float(self._received), float(limit is not None and minutes > limit), minutes
            )
            signalled, late, minutes = bool(most[0]), bool(most[1]), most[2]
        if signalled:
            return "exiting program after receiving SIGTERM."
        if late:
            return f"exiting program after {minutes} minutes"
        if self._args.exit_interval and iteration % self._args.exit_interval == 0:
            return f"exiting program at iteration {iteration}"
        return None
