"""A plan by stages and axes, for the display of ``airflow-megatron plan``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.requirements.queue_estimates import GpuHours, gpu_hours
from airflow_megatron.requirements.queue_order import can_follow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_megatron.plan.sweep_plan import Plan
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.stage_tree import StageInstance

_SHOWN = 3
_LONG = 40
_MOST_TEXT = 100


@dataclass(frozen=True)
class StageOverview:
    """One stage instance with its jobs at all points of a plan.

    :param instance: its place in the stage tree
    :param jobs: its jobs, in the order of the points
    :param ahead: whether they are queued ahead, while the jobs of the previous stage run
    """

    instance: StageInstance
    jobs: tuple[Job, ...]
    ahead: bool = False

    @property
    def label(self) -> str:
        """Its name relative to its parent, without the parent's branch."""
        return self.instance.name.removeprefix(f"{self.instance.branch}.")

    @property
    def starts(self) -> str:
        """A description of what its jobs wait for; several if the points differ."""
        iterations = list(dict.fromkeys(_checkpoint(job) for job in self.jobs))
        if len(iterations) > 1 and None not in iterations:
            shown = _some(map(str, sorted(number for number in iterations if number)))
            return f"{self.jobs[0].depends_on[0].stage} checkpoint {shown}"
        return self._texts(waits_for)

    @property
    def cancel(self) -> str:
        """The cancel condition of its jobs, empty for none."""
        return self._texts(lambda job: _condition_text(job, job.cancel))

    @property
    def finish(self) -> str:
        """The finish condition of its jobs, empty for the default of their kind."""
        return self._texts(lambda job: "" if _each_checkpoint(job) else _condition_text(job, job.finish))

    @property
    def events(self) -> tuple[str, ...]:
        """The events of its jobs, with their actions."""
        events = self.jobs[0].events if self.jobs else ()
        return tuple(
            f"{event.name}: {event.on} {event.pattern or f'{event.after:g} s'} → {event.do}"
            for event in events
        )

    @property
    def kind(self) -> str:
        """The kind of the stage, and how it runs if not as one job per point."""
        words: list[str] = [self.instance.kind]
        words += ["once"] if self.instance.scope == "sweep" else []
        arrays = dict.fromkeys(job.array for job in self.jobs if job.array is not None)
        words += [f"array of {len(self.jobs)}, {most} at once" for most in arrays]
        words += ["queued ahead"] if self.ahead else []
        return ", ".join(words)

    @property
    def gpu_hours(self) -> GpuHours:
        """The maximum GPU-hours of its jobs."""
        return gpu_hours(self.jobs)

    def _texts(self, describe: Callable[[Job], str]) -> str:
        texts = [text for text in dict.fromkeys(describe(job) for job in self.jobs) if text]
        if len(texts) > 1 and max(map(len, texts)) > _LONG:
            return f"{shortened(texts[0])} ({len(texts)} variants)"
        return shortened(_some(texts, " | "))


def stage_overviews(plan: Plan, tree: Sequence[StageInstance]) -> list[StageOverview]:
    """Return the stages of a plan's jobs, parents first, each followed by those below it."""
    jobs: dict[str, list[Job]] = {}
    for job in plan.jobs:
        jobs.setdefault(job.stage, []).append(job)
    by_name = {job.name: job for job in plan.jobs}
    ahead = {
        job.stage
        for job in plan.jobs
        for wanted in job.depends_on
        if (before := by_name.get(wanted.job)) is not None and before.ahead and can_follow(job, before)
    }
    children: dict[str | None, list[StageInstance]] = {}
    for instance in tree:
        children.setdefault(instance.parent, []).append(instance)
    ordered: list[StageOverview] = []

    def visit(parent: str | None) -> None:
        for instance in children.get(parent, ()):
            own = tuple(jobs.get(instance.name, ()))
            ordered.append(StageOverview(instance, own, instance.name in ahead))
            visit(instance.name)

    visit(None)
    return ordered


def axes(plan: Plan) -> dict[str, list[Any]]:
    """Return the values of every swept parameter, in order of occurrence."""
    found: dict[str, dict[str, Any]] = {}
    for job in plan.jobs:
        for name, value in swept_values(job).items():
            found.setdefault(name, {}).setdefault(repr(value), value)
    return {name: list(values.values()) for name, values in found.items()}


def swept_values(job: Job) -> Mapping[str, Any]:
    """Return the swept parameters of a job with their values."""
    return {name: job.params[name] for name in job.swept if name in job.params}


def shortened(text: str, most: int = _MOST_TEXT) -> str:
    """Return a text on one line, without its middle if it is longer than ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 31]} … {line[-28:]}"


def waits_for(job: Job) -> str:
    """Return a description of what a job waits for."""
    if job.source is not None and job.source.is_pattern:
        of = "each checkpoint of " if job.source.from_iteration is not None else ""
        after = [f"{item.stage} finished" for item in job.depends_on]
        return ", ".join([*after, f"{of}each directory {job.source.path}"])
    each = _each_checkpoint(job)
    if each:
        apart = f", {each.spacing} apart" if each.spacing > 1 else ""
        begin = f" from iteration {each.iteration}" if each.iteration else ""
        of = f"from {job.source}" if job.source else job.depends_on[0].stage
        return f"{of}: each checkpoint{begin}{apart}"
    if job.start is not None:
        every = " (before every attempt)" if job.start_every_attempt else ""
        return _condition_text(job, job.start) + every
    after = [f"{item.stage} {item.to_plan()['until']}" for item in job.depends_on]
    return ", ".join(after + ([f"from {job.source}"] if job.source else [])) or "nothing"


def _each_checkpoint(job: Job) -> Condition | None:
    """Return the condition of a job that processes each new checkpoint."""
    given = (job.start if job.depends_on else None, job.finish if job.source else None)
    leaves = (leaf for condition in given if condition for leaf in condition.leaves())
    return next((leaf for leaf in leaves if leaf.kind == "new_checkpoint"), None)


def _checkpoint(job: Job) -> int | None:
    if job.start is None and len(job.depends_on) == 1:
        return job.depends_on[0].iteration
    return None


def _condition_text(job: Job, condition: Condition | None) -> str:
    """Return a condition in words that are the same at every point: directories of the job are left out."""
    if condition is None:
        return ""
    text = condition.text(job.stage_dir).replace(f"{job.run_dir}/", "")
    return text.replace(f"/{job.point}/", "/<point>/") if job.point else text


def _some(texts: Iterable[str], separator: str = ", ") -> str:
    shown = [text for text in texts if text]
    more = len(shown) - _SHOWN
    return separator.join(shown[:_SHOWN]) + (f"{separator}… ({more} more)" if more > 0 else "")
