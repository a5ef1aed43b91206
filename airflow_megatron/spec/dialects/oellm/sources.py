"""Checkpoints of an oellm-autoexp sweep that no stage of the sweep creates."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.dialects.oellm.errors import JobError
from airflow_megatron.spec.dialects.oellm.postprocess import steps_of
from airflow_megatron.spec.dialects.oellm.siblings import stage_of
from airflow_megatron.spec.expressions.resolution import ExpressionError
from airflow_megatron.spec.model.checkpoint_sources import CheckpointSource, resolved_source
from airflow_megatron.spec.model.schema import StartSection
from airflow_megatron.spec.trust.json_records import whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.dialects.oellm.sweep import SweepPoint
    from airflow_megatron.spec.foreign.interpolation.configuration import Configuration
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import StageKindName

_KEYS = {"train": "backend.megatron.load", "convert": "backend.megatron_path", "evaluate": "backend.models"}


def external_source(
    configuration: Configuration,
    kind: StageKindName,
    run_dir: str,
    made: Sequence[Job],
    parent: Job | None,
    warnings: list[str],
) -> CheckpointSource | None:
    """Return the checkpoint outside the sweep that a job uses; None if a stage creates it, or if it uses none.

    :param run_dir: of the job
    :param made: the jobs of its family made before it
    :param parent: the one that it follows
    :param warnings: warnings about ignored keys are added to this list
    :raises JobError: if the path is not absolute on the cluster, or a conversion or evaluation has none
    """
    if kind not in _KEYS:
        return None
    key = _KEYS[kind]
    path = configuration.get(key)
    path = path[0] if isinstance(path, list) and len(path) == 1 else path
    step = configuration.get("backend.megatron.ckpt_step" if kind == "train" else "backend.iteration")
    given_step = step
    number = whole(step)
    step = number if number is not None and number > 0 else None
    if kind != "train" and parent is not None and parent.branch is not None:
        return None
    if kind == "train":
        if path in (None, ""):
            if step and (parent is None or parent.kind != "train") and not steps_of(configuration, kind):
                warnings.append(
                    f"backend.megatron.ckpt_step: {step}: nothing is loaded, since load names nothing"
                )
            return None
        if _below(str(path), [run_dir, *(job.run_dir for job in made)]):
            return None
        if step is None and given_step is not None:
            warnings.append(
                f"backend.megatron.ckpt_step: {given_step}: ignored; the newest checkpoint of {path} is loaded"
            )
    elif path in (None, "", []):
        raise JobError(
            "the stage works on a checkpoint that no stage of the sweep makes",
            key,
            "add the stage that makes it, and refer to it by ${sibling.STAGE.…}, or name its directory",
        )
    elif isinstance(path, list):
        raise JobError(
            f"{key} names {len(path)} models", key, "write a point for each: params: {backend.models: …}"
        )
    finetune = kind == "train" and configuration.get("backend.megatron.finetune") is True
    is_name = kind == "evaluate" and not str(path).startswith(("/", "./", "../"))  # of a model on the Hub
    place = str(path) if is_name else on_cluster(str(path), key, configuration, warnings)
    given: dict[str, Any] = {"from": place, "iteration": step, "mode": "finetune" if finetune else None}
    try:
        source = resolved_source(StartSection.model_validate(given), kind, {})
    except ExpressionError as error:
        hint = "" if place.startswith("/") or is_name else "set PROJECT_DIR, where oellm-autoexp is started"
        raise JobError(str(error).replace("start.from", key), key, hint) from error
    if kind == "convert" and source.iteration is None:
        raise JobError(f"{key} {path} does not name the checkpoint to convert", key, f"write {path}/iter_…")
    return source


def on_cluster(path: str, key: str, configuration: Configuration, warnings: list[str]) -> str:
    """Return a path as an absolute one.

    A relative path begins where oellm-autoexp is started, ``PROJECT_DIR`` according to its README.

    :param key: names the path in messages
    :param warnings: a warning about a relative path is added to this list
    :return: the path itself, if it is absolute, or ``PROJECT_DIR`` is not
    """
    if path.startswith("/"):
        return path
    place = below_project(path, configuration.expression("${oc.env:PROJECT_DIR,null}"))
    if place != path:
        warnings.append(f"{key}: {path}: a relative path begins at PROJECT_DIR")
    return place


def below_project(path: str, project: object) -> str:
    """Return the absolute path of a relative one; the path itself if the project has none.

    :param project: the value of ``PROJECT_DIR``
    """
    if path.startswith("/") or not isinstance(project, str) or not project.startswith("/"):
        return path
    return posixpath.normpath(posixpath.join(project, path))


def mistaken_source(kind: StageKindName, path: str, writers: Mapping[str, SweepPoint]) -> str:
    """Return a warning if a job loads from where oellm-autoexp's job of another point writes; empty without one.

    :param kind: of the job
    :param path: of its checkpoint outside the sweep
    :param writers: the directories of the jobs in oellm-autoexp, with their points
    """
    own = PurePosixPath(path)
    writer = next((writers[str(place)] for place in (own, *own.parents) if str(place) in writers), None)
    if writer is None:
        return ""
    return (
        f"{_KEYS[kind]}: {own}: in oellm-autoexp, point {writer.index} of this file writes there; here each job writes "
        f"to a run directory of its own. To load from that point, write "
        f"${{sibling.{stage_of(writer) or 'STAGE'}.output_dir}}"
    )


def iteration_of_source(source: CheckpointSource, kind: StageKindName) -> int | None:
    """Return the iteration of the checkpoint that a job uses; 0 for a model without one."""
    if kind == "train":
        return source.iteration if source.mode == "continue" else None
    return source.iteration or 0


def _below(path: str, directories: Sequence[str]) -> bool:
    path = path.rstrip("/")
    return any(path == directory or path.startswith(f"{directory}/") for directory in directories)
