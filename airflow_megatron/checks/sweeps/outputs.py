"""Check that no two jobs write the same files.

A stage that finds another stage's results skips its own work (``each_checkpoint``), overwrites them, or counts as
finished. Stages that follow each other may share a declared output, because the later one may continue with the files
of the earlier one. A directory may have one conversion and one evaluation of a checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.layout.run_layout import tracker_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.requirements.training_arguments import TrainingArguments
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep


@dataclass(frozen=True)
class _Result:
    """The output of a job for checkpoints in a directory: for one iteration, or for each."""

    job: Job
    iteration: int | None
    each: Condition | None

    @property
    def of_pattern(self) -> bool:
        """Whether the checkpoints come from several runs outside the sweep, each with its own folder."""
        return self.job.source is not None and self.job.source.is_pattern

    def meets(self, other: _Result) -> int | str | None:
        """Return an iteration that both process, ``*`` for any, or None if none is certain."""
        if self.of_pattern or other.of_pattern:
            return "*" if self.of_pattern and other.of_pattern else None
        if self.each and other.each:
            return "*"
        if self.each or other.each:
            each, single = (self.each, other.iteration) if self.each else (other.each, self.iteration)
            if each is None or single is None or single < (each.iteration or 0):
                return None
            return single if each.spacing == 1 or single in (each.last, each.iteration) else None
        return self.iteration if self.iteration == other.iteration else None


def output_findings(
    sweep: Sweep, jobs: Sequence[Job], trainings: Mapping[str, TrainingArguments]
) -> Iterator[Finding]:
    """Yield jobs that write the same files as another job.

    :param jobs: with their commands
    :param trainings: the arguments of training jobs by run directory
    """
    yield from _results(sweep, jobs)
    by_name = {job.name: job for job in jobs}
    writers: dict[str, Job] = {}
    for job in jobs:
        for path in _paths(job, trainings):
            other = writers.setdefault(path, job)
            if other is job or _follows(job, other, by_name) or _follows(other, job, by_name):
                continue
            own = "save" if job.trains and path not in job.outputs else "outputs"
            yield Finding(
                f"same-output:{other.stage}",
                job,
                (own,),
                f"writes {path}, and so does {_named(sweep, other, job)}",
                "give each its own path"
                + (", with the point's values in it" if other.stage == job.stage else ""),
            )


def _results(sweep: Sweep, jobs: Iterable[Job]) -> Iterator[Finding]:
    """Yield conversions or evaluations of the same checkpoint in the same directory."""
    made: dict[tuple[str, str], list[_Result]] = {}
    for job in jobs:
        made_of = job.stage_kind.result
        if made_of is None or job.script or not any(word.endswith(made_of.program) for word in job.command):
            continue
        conditions = (condition for condition in (job.start, job.finish) if condition is not None)
        leaves = (leaf for condition in conditions for leaf in condition.leaves())
        result = _Result(job, job.iteration, next((leaf for leaf in leaves if leaf.done), None))
        for other in made.setdefault((job.kind, job.run_dir), []):
            iteration = result.meets(other)
            if iteration is None:
                continue
            layout = job.layout.of_run("*") if result.of_pattern else job.layout
            path = made_of.path(layout, iteration)
            hint = made_of.hint.format(
                checkpoints=f"{job.checkpoint_dir}, iteration: N",
                model=job.layout.model_dir(iteration if iteration != "*" else "N"),
            )
            message = f"writes {path}, and so does {_named(sweep, other.job, job)}"
            yield Finding(f"same-results:{other.job.stage}", job, ("kind",), message, hint)
            break
        made[job.kind, job.run_dir].append(result)


def _paths(job: Job, trainings: Mapping[str, TrainingArguments]) -> Iterator[str]:
    yield from (path for path in job.outputs if not job.stage_kind.result or not _is_result(path, job))
    training = trainings.get(job.run_dir) if job.trains else None
    if training is not None and not job.script and isinstance(save := training.value("save"), str):
        yield tracker_of(save)


def _is_result(path: str, job: Job) -> bool:
    """Whether a path is a default output of a conversion or evaluation."""
    return path.startswith((f"{job.layout.converted_dir}/", f"{job.layout.evaluations_dir}/"))


def _follows(job: Job, other: Job, by_name: Mapping[str, Job]) -> bool:
    """Whether a job starts only after another has ended."""
    waiting, seen = [job], {job.name}
    while waiting:
        for dependency in waiting.pop().depends_on:
            if dependency.job == other.name:
                return True
            if dependency.job not in seen and dependency.job in by_name:
                seen.add(dependency.job)
                waiting.append(by_name[dependency.job])
    return False


def _named(sweep: Sweep, other: Job, job: Job) -> str:
    place = sweep.document.problem(sweep.place_of(other.stage, "kind"), "")
    point = f" at point {other.point}" if other.point != job.point and other.point else ""
    return f"stage {other.stage}{point} (line {place.line})"
