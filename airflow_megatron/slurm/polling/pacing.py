"""Polling interval: short while observations change, longer while they do not.

A change is reported with a delay of at most one hundredth of the time since the previous change: a job without a change
for 100 minutes is polled every minute. A job near its walltime limit is polled as often as a job that has just started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.slurm.states.job_states import JobState

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from airflow_megatron.slurm.states.observation import Observation, Watch

CALM_SHARE = 0.01
"""Pause between two polls, as a part of the time since the last change."""
LONGEST_PAUSE = 4.0
"""The longest pause, as a multiple of the configured interval."""


def news(observation: Observation) -> Hashable:
    """Return the parts of an observation whose change shortens the interval; the growing log is not one of them."""
    queue = observation.queue
    return (
        (queue.job_id, queue.state, queue.started) if queue else None,
        observation.accounting is not None,
        observation.tracker,
        len(observation.checkpoint_files),
        observation.exit is not None,
        tuple(observation.files.items()),
        tuple(observation.existing.items()),
        tuple(observation.matches.items()),
    )


def patience(watch: Watch, observation: Observation, quiet: float) -> float:
    """Return the seconds that a watcher can wait for its next observation.

    :param watch: the job and files to observe
    :param observation: the newest observation
    :param quiet: seconds since :func:`news` changed
    """
    queue = observation.queue
    if observation.unreachable is not None or _behind(observation):
        return 0.0
    if watch.job_id is not None and (queue is None or queue.state.ended):
        return 0.0  # the job has ended and needs a verdict
    calm = quiet
    if queue is not None and queue.state is not JobState.PENDING and queue.ended:
        calm = min(calm, queue.ended - observation.time)  # the walltime limit
    calm = max(calm, 0.0) * CALM_SHARE
    return min(calm, watch.command_interval) if watch.commands else calm


def pause(interval: float, patiences: Iterable[float]) -> float:
    """Return the seconds until the next poll.

    :param interval: the shortest pause, in seconds
    :param patiences: :func:`patience` of each watcher, in seconds
    """
    return min(max(interval, min(patiences, default=interval)), LONGEST_PAUSE * interval)


def left_out(observation: Observation) -> bool:
    """Return whether the log has new bytes of which this poll transferred none."""
    return _behind(observation) and not observation.log_chunk


def _behind(observation: Observation) -> bool:
    """Return whether the log has bytes that did not fit into this poll."""
    read = observation.log_offset + len(observation.log_chunk)
    return observation.log_size is not None and observation.log_size > read
