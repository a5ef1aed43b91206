"""The JSON text of a checked plan, made by two processes.

A forked process plans, checks and writes the second half of the points while this one does the first. The output is
byte-identical to that of one process; if that is not certain, the result is None.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
import tempfile
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final

from airflow_megatron.checks.findings import reported
from airflow_megatron.checks.sweeps.limits import budget_problems
from airflow_megatron.checks.sweeps.site_rules import counts_jobs, purge_problems, run_root_problems
from airflow_megatron.plan.halves.half_plan import CheckedHalf, NeedsOneProcessError, checked_half
from airflow_megatron.plan.sweep_plan import PlanSummary, check_document, digest_of
from airflow_megatron.requirements.queue_estimates import GpuHours
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.native.sweep import NativeSweep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.checks.findings import AlikeFindings
    from airflow_megatron.plan.halves.half_plan import FindingsByRule
    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.sweep import Point, Sweep

LEAST_POINTS: Final = 4000
"""Minimum number of points; with fewer, a second process saves less than 0.1 s."""
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class SplitPlan:
    """A checked plan whose second half is in a file.

    :param first: the plan of the first half
    :param rows: the text of the rows of the second half
    """

    summary: PlanSummary
    first: Plan
    rows: IO[bytes]

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """Warnings of the checks: valid settings that are probably mistakes."""
        return self.summary.warnings

    def json_text(self) -> Iterator[bytes]:
        """Yield the same text as :meth:`.Plan.json_text` of the whole plan."""
        yield self.summary.head
        yield from self.first.rows_text()
        self.rows.seek(0)
        yield from iter(lambda: self.rows.read(_READ_BYTES), b"")
        yield b"\n  ]\n}\n"


def split_plan(sweep: Sweep, cluster: ClusterProfile, points: Sequence[Point]) -> SplitPlan | None:
    """Plan and check points in two processes.

    :return: None if the plan must be made in one process: for files of other tools, errors, jobs that depend on other
        points, and rules that count the jobs of all points
    """
    if not isinstance(sweep, NativeSweep) or cluster.signatures or len(points) < 2:
        return None
    if any(map(counts_jobs, cluster.rules)):
        return None
    with contextlib.ExitStack() as files:
        try:
            encoded = files.enter_context(tempfile.TemporaryFile())
            rows = tempfile.TemporaryFile()  # noqa: SIM115 (it is read when the plan is printed)
        except OSError:
            return None
        try:
            check_document(sweep, cluster)
            shared = len(sweep.shared_jobs(cluster))
            middle = len(points) // 2
            with _Helper(sweep, cluster, points[middle:], shared, (encoded, rows)) as helper:
                half, plan = checked_half(sweep, cluster, points[:middle], 0)
                other = helper.answer()
        except (SpecError, NeedsOneProcessError, RuntimeError):
            rows.close()
            return None
        problems = _merged_problems(sweep, cluster, half, other, len(points))
        if problems is None:
            rows.close()
            return None
        warnings, total = problems
        encoded.seek(0)
        digest = digest_of(itertools.chain(plan.encoded_jobs(), iter(lambda: encoded.read(_READ_BYTES), b"")))
        summary = PlanSummary(
            *(sweep.name, digest, cluster.name, len(points), total.hours),
            *(tuple(sorted({*sweep.warnings(), *warnings})), half.no_estimates),
        )
        return SplitPlan(summary, plan, rows)


def _merged_problems(
    sweep: Sweep, cluster: ClusterProfile, half: CheckedHalf, other: CheckedHalf, points: int
) -> tuple[list[Problem], GpuHours] | None:
    """Return the warnings and the GPU-hours of all points; None if the whole plan has errors."""
    total = GpuHours()
    for hours in (*half.hours, *other.hours):  # in the order of the jobs, as sums of fractions depend on it
        total += hours
    warnings = [
        problem
        for one, two in zip(half.findings, other.findings, strict=True)
        for problem in reported(_merged(one, two).values(), sweep, cluster)
    ]
    errors, more = budget_problems(sweep, total, half.jobs + other.jobs, points, cluster)
    wrong, odd = run_root_problems(sweep, cluster)
    purged = purge_problems(sweep, max(half.chain, other.chain), points, cluster)
    return None if errors or wrong else ([*warnings, *more, *odd, *purged], total)


def _merged(one: FindingsByRule, two: FindingsByRule) -> FindingsByRule:
    merged = dict(one)
    for key, alike in two.items():
        merged[key] = _joined(one[key], alike) if key in one else alike
    return merged


def _joined(one: AlikeFindings, two: AlikeFindings) -> AlikeFindings:
    return replace(one, points=one.points + two.points, of_sweep=one.of_sweep or two.of_sweep)


class _Helper:
    """The process that plans and writes the second half; leaving the context always waits for its end."""

    def __init__(
        self,
        sweep: Sweep,
        cluster: ClusterProfile,
        points: Sequence[Point],
        shared: int,
        files: tuple[IO[bytes], IO[bytes]],
    ) -> None:
        self._work = sweep, cluster, points, shared
        self._files = files

    def __enter__(self) -> _Helper:
        reading, writing = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(reading)
            self._plan(writing)
        os.close(writing)
        self._answer = os.fdopen(reading, "rb")
        return self

    def __exit__(self, *_: object) -> None:
        self._answer.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)

    def answer(self) -> CheckedHalf:
        """Return the contribution of the half after its files are written.

        :raises NeedsOneProcessError: if it could not be planned separately
        """
        text = self._answer.read()
        if not text:
            raise NeedsOneProcessError
        answer: CheckedHalf = pickle.loads(text)
        return answer

    def _plan(self, writing: int) -> None:
        """Do the work of the child process, and exit without the parent's clean-up; no answer means failure."""
        try:
            half, plan = checked_half(*self._work)
            shared = self._work[-1]
            encoded, rows = self._files
            encoded.writelines(plan.encoded_jobs(shared))
            rows.writelines(plan.rows_text(shared, continued=True))
            encoded.flush()
            rows.flush()
            text = pickle.dumps(half)
            with os.fdopen(writing, "wb") as answer:
                answer.write(text)
        finally:
            os._exit(0)
