"""Pushing the stored records of a sweep to a tracker, each record once.

The store serves as the queue: a push reads the records after the last step that the tracker has, in batches. No task
waits for a push, and the next push continues one that was interrupted at any time.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_megatron.results.readings.sweep_jobs import format_value
from airflow_megatron.results.store.reading import Results
from airflow_megatron.results.trackers.tracked_records import SweepRecords
from airflow_megatron.spec.model.stage_kinds import STAGE_KINDS
from airflow_megatron.spec.trackers.tracker import TRACKERS, TrackedTraining

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_megatron.results.readings.sweep_jobs import SweepJob
    from airflow_megatron.results.store.segments import SegmentStore
    from airflow_megatron.spec.model.schema import TrackerSection
    from airflow_megatron.spec.trackers.tracker import TrackerAccess

RECORDS_AT_ONCE: Final = 500
"""Maximum number of records in memory for one tracker."""


EVALUATIONS: Final = " evaluations"
"""Suffix of the name of the run with the evaluations of a training's checkpoints."""


class Pushed(NamedTuple):
    """The result of a push.

    :param records: number of sent records
    :param trainings: number of their trainings
    """

    records: int
    trainings: int


def push_sweep(
    store: SegmentStore,
    sweep: str,
    jobs: Iterable[SweepJob],
    section: TrackerSection,
    access: TrackerAccess,
    *,
    ended: bool = False,
    by_hand: bool = False,
) -> Pushed:
    """Send the records of a sweep's trainings that a tracker does not have yet.

    :param jobs: jobs of the sweep's plan; other trainings are pushed without their parameters
    :param section: the section of the spec
    :param access: access to the tracker
    :param ended: whether no further records of the sweep are written
    :param by_hand: send evaluations if none was read for an hour, because the user knows that the sweep has ended
    :raises TrackerError: if the tracker does not accept records; the next push sends them
    :raises airflow_megatron.results.store.segments.StoreError: if the store does not answer
    """
    trainings = {
        (job.point, job.stage): job
        for job in jobs
        if (kind := STAGE_KINDS.find(job.kind)) is not None and kind.trains
    }
    parents = {key: job.parent_branch for key, job in trainings.items() if job.parent_branch}
    records = SweepRecords(Results(store, sweep), parents, time.time())
    if not records.trainings and not records.evaluated:
        return Pushed(0, 0)
    evaluated = ended or (by_hand and records.evaluations_are_quiet)
    sent = touched = 0
    with TRACKERS[section.tracker].open(access, section.project or sweep) as session:
        for point, stage, is_training in (
            *((*one, True) for one in records.trainings),
            *((*one, False) for one in records.evaluated),
        ):
            job = trainings.get((point, stage))
            params = {name: format_value(value) for name, value in job.sweep_params.items()} if job else {}
            training = TrackedTraining(
                sweep, point, stage if is_training else f"{stage}{EVALUATIONS}", params
            )
            last = session.last_step(training)
            before = sent
            new = (
                records.after(point, stage, last, ended=ended)
                if is_training
                else records.evaluations_after(point, stage, last, ended=evaluated)
            )
            while batch := list(itertools.islice(new, RECORDS_AT_ONCE)):
                session.push(training, batch)
                sent += len(batch)
            touched += sent > before
            if ended:
                session.finish(training)
    return Pushed(sent, touched)
