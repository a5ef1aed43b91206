"""Check that every checkpoint that a job needs is saved and kept by its training run.

Megatron saves after every ``save_interval`` iterations and at the end (``megatron/training/training.py``,
``checkpoint_and_decide_exit`` and ``pretrain``); with ``save_retain_interval`` each save deletes the checkpoint before
it, unless its iteration is a multiple of that interval (``megatron/training/checkpointing.py``, ``save_checkpoint``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from airflow_megatron.checks.findings import Finding
from airflow_megatron.spec.expressions.file_values import path_of
from airflow_megatron.spec.layout.run_layout import run_dir_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.requirements.training_arguments import TrainingArguments
    from airflow_megatron.spec.model.conditions import Condition
    from airflow_megatron.spec.model.jobs import Job

START = ("start", "checkpoint")
_FOR_SAVES = ("train_iters", "train_samples", "global_batch_size", "save_interval", "save_retain_interval")


class SavedCheckpoints(msgspec.Struct, frozen=True):
    """The checkpoints of one training run.

    :param stage: its stage, for messages
    :param first: the iteration that it starts from
    :param last: the last iteration; None if the length is not given in iterations
    :param every: ``save_interval``, None without one
    :param kept: ``save_retain_interval``, None without one
    :param saves: False if the stage saves no checkpoint
    :param extra: ``save_extra_steps`` of OpenEuroLLM's fork: additional iterations with a checkpoint
    :param is_known: False if an earlier job writes the length or an interval, so only the job knows what it saves
    :param skipped: ``iterations_to_skip``, counted from 0: upstream goes on without the save that follows them
    """

    stage: str
    first: int
    last: int | None
    every: int | None
    kept: int | None
    saves: bool = True
    extra: tuple[int, ...] = ()
    is_known: bool = True
    skipped: tuple[int, ...] = ()

    @classmethod
    def of(cls, arguments: TrainingArguments) -> SavedCheckpoints:
        """Derive the checkpoints from the arguments of a job."""
        return cls(
            arguments.job.stage,
            arguments.job.iteration or 0,
            arguments.count("train_iters") or arguments.job.last_iteration,
            arguments.count("save_interval"),
            arguments.count("save_retain_interval"),
            arguments.value("save") is not None,
            tuple(arguments.value("save_extra_steps") or ()),
            not any(path_of(value) for value in arguments.given(_FOR_SAVES)),
            tuple(arguments.value("iterations_to_skip") or ()),
        )

    def skips_save(self, iteration: int) -> bool:
        """Return whether the iteration is skipped together with the save after it."""
        return (
            self.saves
            and bool(self.every)
            and iteration % (self.every or 1) == 0
            and iteration - 1 in self.skipped
        )

    def obstacle(self, iteration: int) -> tuple[str, str, str] | None:
        """Return the rule, message and hint if there is no checkpoint of ``iteration``; otherwise None."""
        if not self.saves:
            what = f"needs checkpoint {iteration} of {self.stage}, which saves nothing (save_interval: 0)"
            return "saves-nothing", what, f"set save_interval in {self.stage}"
        if self.skips_save(iteration):
            what = (
                f"needs checkpoint {iteration} of {self.stage}, which is not saved because iterations_to_skip contains"
                f" {iteration - 1}, counted from 0"
            )
            return "skips-save", what, f"leave out {iteration - 1}, or start from another checkpoint"
        if iteration == self.last or iteration in self.extra:
            return None
        if self.last is not None and iteration > self.last:
            rule, what = "after-the-end", f"ends at iteration {self.last}"
        elif iteration <= self.first:
            rule, what = "before-the-start", f"itself starts at iteration {self.first}"
        elif not self.is_known:
            return None
        elif self.every is None:
            rule, what = "no-save-interval", "has no save_interval and saves none before its end"
        elif iteration % self.every:
            rule, what = "not-saved", f"saves every {self.every} iterations only"
        elif self.kept and iteration % self.kept:
            message = (
                f"needs checkpoint {iteration} of {self.stage}, whose save_retain_interval of {self.kept} deletes it"
                " as soon as the next one is saved"
            )
            return "deleted", message, f"use a multiple of {self.kept}, or save_retain_interval: {self.every}"
        else:
            return None
        near = self.nearest(iteration)
        hint = (
            f"{self.stage} saves {' and '.join(map(str, near))}"
            if near
            else f"set save_interval in {self.stage}"
        )
        return rule, f"needs checkpoint {iteration} of {self.stage}, which {what}", hint

    def nearest(self, iteration: int) -> list[int]:
        """Return the iterations nearest to ``iteration`` that are saved and kept, at most two."""
        step = self.every and (self.kept or self.every)
        found: set[int] = {self.last} if self.last else set()
        if step:
            below = min(max(iteration, self.first), self.last or iteration) // step * step
            found |= {
                near
                for near in range(below - step, below + 3 * step, step)
                if near > self.first and (self.last is None or near <= self.last)
            }
        return sorted(sorted(found, key=lambda near: abs(near - iteration))[:2])


def checkpoint_findings(jobs: Iterable[Job], trainings: Mapping[str, TrainingArguments]) -> Iterator[Finding]:
    """Yield every checkpoint that a job waits for, starts from or processes, and that will not exist.

    :param jobs: the jobs of a plan
    :param trainings: the arguments of its training jobs by run directory
    """
    saved = {run_dir: SavedCheckpoints.of(arguments) for run_dir, arguments in trainings.items()}
    for job in jobs if saved else ():
        for run_dir, iteration, keys in _needed(job):
            source = saved.get(run_dir)
            obstacle = source.obstacle(iteration) if source else None
            if obstacle:
                rule, message, hint = obstacle
                yield Finding(rule, job, keys, message, hint)
        for leaf, keys in _optional(job):
            source = saved.get(run_dir_of(leaf.path))
            obstacle = source.obstacle(leaf.iteration) if source and leaf.iteration is not None else None
            if obstacle:
                message = f"a condition that never holds {obstacle[1]}"
                yield Finding(f"never-holds:{keys[0]}", job, keys, message, obstacle[2], warning=True)
        if job.trains and job.run_dir in saved:
            last = saved[job.run_dir].last
            arguments = trainings[job.run_dir]
            if last is not None and saved[job.run_dir].skips_save(last):
                yield Finding(
                    "skips-last-save",
                    job,
                    ("iterations_to_skip",),
                    f"skips iteration {last - 1}, counted from 0, the last one, and with it the checkpoint that ends"
                    " the training",
                    f"leave out {last - 1}; or a save_interval that {last} is no multiple of: Megatron then saves at"
                    " the end",
                )
            if last is not None and last <= (job.iteration or 0) and not arguments.value("skip_train"):
                yield _nothing_to_train(job, arguments, last)
        yield from _each_checkpoint(job, saved)


def _nothing_to_train(job: Job, arguments: TrainingArguments, last: int) -> Finding:
    if job.iteration is None and (samples := arguments.count("train_samples")) is not None:
        batch = arguments.count("global_batch_size")
        return Finding(
            "nothing-to-train",
            job,
            ("train_samples",),
            f"train_samples {samples} is less than one batch of global_batch_size {batch}: there is nothing to train",
            f"train_samples of {batch} or more",
        )
    return Finding(
        "nothing-to-train",
        job,
        ("train_iters",),
        f"starts at iteration {job.iteration or 0} and ends at train_iters {last}: there is nothing to train",
        f"train_iters counts from 0: more than {job.iteration or 0}",
    )


def _needed(job: Job) -> Iterator[tuple[str, int, tuple[str, ...]]]:
    """Yield run directory, iteration and place of the checkpoints that a job needs."""
    if job.iteration is not None and not _fresh(job):
        if job.trains and job.parent_dir:
            yield job.parent_dir, job.iteration, START
        elif job.stage_kind.works_on:
            yield job.run_dir, job.iteration, START if "iteration" not in job.params else ("iteration",)
    if not job.trains and not job.stage_kind.works_on and job.parent_dir:
        for dependency in job.depends_on:
            if dependency.iteration is not None:
                yield job.parent_dir, dependency.iteration, START
    for condition, keys in ((job.start, START), (job.finish, ("finish", "checkpoint"))):
        for leaf in _required(condition) if condition else ():
            if leaf.kind == "checkpoint" and leaf.iteration is not None:
                yield run_dir_of(leaf.path), leaf.iteration, keys


def _optional(job: Job) -> Iterator[tuple[Condition, tuple[str, ...]]]:
    """Yield the checkpoints, with their place, that conditions of a job ask for and that it can do without."""
    if not (job.start or job.finish or job.cancel or job.events):
        return
    conditions = [(job.start, "start"), (job.finish, "finish"), (job.cancel, "cancel")]
    for condition, key in (*conditions, *((event.condition, "events") for event in job.events)):
        needed = list(_required(condition)) if condition and key in ("start", "finish") else []
        for leaf in condition.leaves() if condition else ():
            if leaf.kind == "checkpoint" and leaf not in needed:
                yield leaf, (key,)


def _required(condition: Condition) -> Iterator[Condition]:
    """Yield the leaves that must hold for a condition to hold."""
    if condition.kind == "all":
        for part in condition.parts:
            yield from _required(part)
    elif not condition.parts:
        yield condition


def _fresh(job: Job) -> Sequence[Condition]:
    return [leaf for leaf in job.start.leaves() if leaf.kind == "new_checkpoint"] if job.start else []


def _each_checkpoint(job: Job, saved: Mapping[str, SavedCheckpoints]) -> Iterator[Finding]:
    """Yield the stages that process each checkpoint of a run that deletes some of them."""
    for leaf in _fresh(job):
        source = saved.get(run_dir_of(leaf.path))
        if (
            source
            and source.kept
            and source.every
            and source.kept > source.every
            and leaf.spacing % source.kept
        ):
            yield Finding(
                "each-deleted",
                job,
                ("each_checkpoint",),
                f"save_retain_interval of {source.stage} deletes checkpoints that are not multiples of {source.kept},"
                " perhaps before they are processed",
                f"each_checkpoint: {{spacing: {source.kept}}}",
                warning=True,
            )
