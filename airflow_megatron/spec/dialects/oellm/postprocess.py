"""``postprocess:`` of an oellm-autoexp point as stages after its training.

Upstream (``orchestrator.py``, ``postprocess/``, c6d0cc0) runs the conversions after the training's command, in the same
job, and schedules the evaluation once that job has finished. Here each is a job of its own, in the training's run
directory. Megatron's old "torch" format between two conversions is not needed: the converter reads ``torch_dist``.

With ``save_interval`` and ``train_iters`` (branch ``harsh/ckpt_conversion_backend``), a step converts every checkpoint.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from airflow_megatron.spec.dialects.oellm.errors import JobError
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.model.jobs import Dependency
from airflow_megatron.spec.model.schema import EachCheckpointSection
from airflow_megatron.spec.native.conditions import ConditionScope, each_checkpoint_conditions
from airflow_megatron.spec.native.jobs import each_checkpoint_paths
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import StageKindName

SECTION: Final = "postprocess"
_TO_TORCH, _TO_HF, _EVALUATES = "MegatronDistToTorchStep", "MegatronToHFStep", "OELLMEvalStep"
_FIELDS: Final = {
    _TO_TORCH: ("class_name", "cmd", "load_dir", "ckpt_step", "save_interval", "train_iters"),
    _TO_HF: (
        *("class_name", "architecture", "torch_ckpt_dir", "hf_output_dir", "target_tensor_parallel_size"),
        *("torch_ckpt_base_dir", "hf_output_base_dir", "ckpt_step", "save_interval", "train_iters"),
        *("target_pipeline_parallel_size", "target_params_dtype", "num_key_value_heads", "model_type"),
        *("architecture_class", "tokenizer_name"),
    ),
    _EVALUATES: ("class_name", "model_path", "task_groups", "dry_run"),
}
_FROM_CHECKPOINT: Final = (
    *("target_tensor_parallel_size", "target_pipeline_parallel_size", "target_params_dtype"),
    *("num_key_value_heads", "model_type", "architecture_class"),
)
_NO_EVENTS: Final = dict.fromkeys(
    (
        *("job.start_condition", "job.cancel_condition", "job.finish_condition", "job.start_conditions"),
        *("job.cancel_conditions", "job.finish_conditions", "job.log_events", "job.state_events"),
        *("job.chain_repeat", "job.inactivity_threshold_seconds"),
    )
)
_TOKENIZER: Final = "EleutherAI/gpt-neox-20b"  # upstream's default
ITERATION: Final = re.compile(r"iter_0*([1-9][0-9]*)")


@dataclass(frozen=True)
class Step:
    """A step that becomes a stage.

    :param name: its key
    :param kind: ``convert`` or ``evaluate``
    """

    name: str
    kind: StageKindName

    @property
    def place(self) -> str:
        """Its place in the configuration."""
        return f"{SECTION}.{self.name}"

    def in_base(self, configuration: Configuration) -> bool:
        """Return whether its directories hold those of the iterations."""
        return configuration.get(f"{self.place}.torch_ckpt_base_dir") not in (None, "")


def steps_of(configuration: Configuration, kind: StageKindName) -> tuple[Step, ...]:
    """Return the steps of a point that become stages, in order.

    :param kind: what the point runs; only a training has any
    :raises JobError: for a class that does not exist, or a field that its class does not have
    """
    if kind != "train":
        return ()
    classes = dict(_classes(configuration))
    steps: list[Step] = []
    for name, class_name in classes.items():
        if class_name == _TO_HF:
            steps.append(Step(name, "convert"))
        elif class_name == _EVALUATES and steps and not configuration.get(f"{SECTION}.{name}.dry_run"):
            steps.append(Step(name, "evaluate"))
    return tuple(steps)


def passed_over_steps(configuration: Configuration, kind: StageKindName) -> Iterator[str]:
    """Yield a warning with the reason for each part of the section without effect."""
    classes = dict(_classes(configuration))
    if classes and kind != "train":
        yield f"{SECTION}: only the checkpoints of a training are converted and evaluated after it"
        return
    made = {step.name for step in steps_of(configuration, kind)}
    for name, class_name in classes.items():
        key = f"{SECTION}.{name}"
        if class_name == _TO_TORCH and _TO_HF not in classes.values():
            yield f"{key}: nothing here needs checkpoints in the format torch; conversions read torch_dist"
        elif class_name == _EVALUATES and name not in made:
            dry = configuration.get(f"{key}.dry_run")
            why = "dry_run" if dry else "no step before it converts the checkpoint (MegatronToHFStep)"
            yield f"{key}: nothing is evaluated: {why}"
        elif class_name == _TO_HF:
            given = [f for f in _FROM_CHECKPOINT if configuration.raw(f"{key}.{f}") is not None]
            if given:
                yield f"{key}: {', '.join(given)}: the converter reads this from the checkpoint"


def converter_of(step: Step, steps: tuple[Step, ...]) -> Step:
    """Return the conversion of a step: itself, or the last one before an evaluation."""
    return next(other for other in reversed(steps[: steps.index(step) + 1]) if other.kind == "convert")


def step_values(
    step: Step, steps: tuple[Step, ...], configuration: Configuration, run_dir: str
) -> dict[str, Any]:
    """Return the dotted keys that turn the configuration of a training into that of its step.

    :param steps: all steps of the training
    :param run_dir: of the training
    :raises JobError: if it works on what the training and its steps do not make
    """
    converter = converter_of(step, steps)
    checkpoint, written = _directories(converter, configuration)
    key = f"{converter.place}.torch_ckpt_{'base_' if converter.in_base(configuration) else ''}dir"
    _below(checkpoint, run_dir, key, f"{key.rpartition('.')[2]}: ${{job.base_output_dir}}/torch/…")
    values: dict[str, Any] = {**_NO_EVENTS, "slurm.sbatch.nodes": 1, "slurm.array": False}
    every = interval_of(converter, configuration)
    model = str(configuration.get(f"{step.place}.model_path") or "")
    named = ITERATION.search(model if every else checkpoint)
    iteration = int(named[1]) if named else whole(configuration.get("backend.megatron.ckpt_step"))
    if step.kind == "convert":
        if iteration is not None and iteration > 0 and not every:
            values["backend.iteration"] = iteration
        return values | {
            "backend.class_name": "MegatronBridgeBackend",
            "backend.tokenizer": configuration.get(f"{step.place}.tokenizer_name") or _TOKENIZER,
            "backend.hf_model": None,
            "backend.hf_architecture": configuration.get(f"{step.place}.architecture"),
        }
    if iteration is not None and iteration > 0:
        values["backend.iteration"] = iteration
    if every:
        last = configuration.get("backend.megatron.train_iters")
        if iteration and (iteration % every == 0 or iteration == last):
            written = f"{written}/iter_{iteration:07d}"
        else:
            written = f"{written}/iter_{every:07d} and each {every} iterations after it"
    if model != written:
        hint = (
            ""
            if converter.in_base(configuration)
            else f"model_path: ${{{converter.place}.hf_output_dir}}; or "
        )
        raise JobError(
            f"{step.place} evaluates {model or 'nothing'}, and {converter.place} writes {written or 'nothing'}",
            f"{step.place}.model_path",
            f"{hint}a stage with OELLMEvalBackend for another model",
        )
    return values | {
        "backend.class_name": "OELLMEvalBackend",
        "backend.tasks": configuration.get(f"{step.place}.task_groups") or ["open-sci-0.01"],
    }


def interval_of(step: Step, configuration: Configuration) -> int | None:
    """Return the ``save_interval`` of a conversion of every checkpoint; None for another step.

    :raises JobError: if it is not that of a training which ends at the step's ``train_iters``
    """
    interval, last = (configuration.get(f"{step.place}.{key}") for key in ("save_interval", "train_iters"))
    if step.kind != "convert" or interval is None or last is None:
        return None
    every = whole(interval)
    if every is None or every < 1:
        key = f"{step.place}.save_interval"
        raise JobError(f"{key} is {interval!r}, not a whole number from 1 on", key)
    end = configuration.get("backend.megatron.train_iters")
    if last != end:
        key = f"{step.place}.train_iters"
        raise JobError(
            f"{key} is {last}, and the training ends at {end}",
            key,
            f"{key}: ${{backend.megatron.train_iters}}",
        )
    return every


def each_converted(job: Job, training: Job, every: int) -> Job:
    """Return a conversion of every checkpoint of a training, each when it is saved.

    :param every: iterations between two checkpoints
    """
    section = EachCheckpointSection(from_iteration=every, spacing=every)
    scope = ConditionScope({}, job.run_dir, job, lambda _: [])
    start, finish = each_checkpoint_conditions(section, *each_checkpoint_paths(job), training, scope)
    depends_on = (Dependency(training.name, training.stage, "condition"),)
    return msgspec.structs.replace(
        job, start=start, finish=finish, start_every_attempt=True, depends_on=depends_on
    )


def _directories(converter: Step, configuration: Configuration) -> tuple[str, str]:
    """Return the directories that a conversion reads and writes; of every checkpoint: those that hold them."""
    base = "base_" if converter.in_base(configuration) else ""
    read, written = (
        str(configuration.get(f"{converter.place}.{name}_{base}dir") or "")
        for name in ("torch_ckpt", "hf_output")
    )
    step = whole(configuration.get(f"{converter.place}.ckpt_step")) if base else None
    if step is None or interval_of(converter, configuration):
        return read, written
    return f"{read}/iter_{step:07d}", f"{written}/iter_{step:07d}"


def _classes(configuration: Configuration) -> Iterator[tuple[str, str]]:
    section = configuration.raw(SECTION)
    if section in (None, {}, "none"):
        return
    if not isinstance(section, dict):
        raise JobError(
            f"{SECTION} takes steps by name", SECTION, f"{SECTION}: {{convert: {{class_name: {_TO_HF}}}}}"
        )
    for name, step in section.items():
        if step is None:
            continue
        key = f"{SECTION}.{name}"
        class_name = step.get("class_name") if isinstance(step, dict) else None
        if class_name not in _FIELDS:
            near = did_you_mean(str(class_name), _FIELDS) or f"known: {', '.join(_FIELDS)}"
            raise JobError(f"{key}: there is no step {class_name!r}", f"{key}.class_name", near)
        for field in step:
            if field not in _FIELDS[class_name]:
                near = did_you_mean(str(field), _FIELDS[class_name], limit=1)
                known = ", ".join(_FIELDS[class_name][1:])
                raise JobError(
                    f"there is no key '{key}.{field}'", f"{key}.{field}", near or f"known: {known}"
                )
        dry = configuration.get(f"{key}.dry_run")
        if not isinstance(dry, bool | None):
            raise JobError(f"{key}.dry_run is {dry!r}, not true or false", f"{key}.dry_run")
        yield str(name), class_name


def _below(path: str, run_dir: str, key: str, hint: str) -> None:
    """Check that an absolute path belongs to the training; a relative one is below upstream's output directory."""
    if path.startswith("/") and not path.startswith(f"{run_dir}/"):
        raise JobError(f"{key} is {path}, which the training does not write", key, hint)
