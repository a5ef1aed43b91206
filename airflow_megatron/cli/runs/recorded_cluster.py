"""Write the cluster profile in a run's stored plan, with its files, as a new profile."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_megatron.plan.pins.pin_store import PinError
from airflow_megatron.spec.documents.project import clusters_dir
from airflow_megatron.spec.model.schema import ClusterSection

if TYPE_CHECKING:
    from airflow_megatron.plan.plan_environment import PlanEnvironment

_EXPRESSIONS: Final = ("{{", "{%", "{#")


def write_cluster(plan_environment: PlanEnvironment, name: str) -> list[Path]:
    """Write a profile and the folder of its templates, signatures and tables of arguments; return both.

    :param plan_environment: the profile and files in a run's pin
    :param name: name of the new profile
    :raises PinError: if there is one of that name, or the folder of the profiles cannot be written
    """
    path, folder = clusters_dir() / f"{name}.yaml", clusters_dir() / f"{name}.files"
    profile = ClusterSection.model_validate(
        plan_environment.cluster.model_dump(mode="json", exclude={"name"})
    )
    data: dict[str, Any] = profile.model_dump(mode="json", exclude_defaults=True)
    own: list[Path] = []
    try:
        for each in (path, folder):
            if os.path.lexists(each):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(each))
        folder.mkdir()
        own.append(folder)
        templates = plan_environment.templates
        if not isinstance(templates, Path):
            data["templates"] = f"{folder.name}/templates"
            _write(folder / "templates", templates)
        signatures = {Path(file).name: text for file, text in plan_environment.signatures.items()}
        if signatures:
            data["signatures"] = [f"{folder.name}/{file}" for file in signatures]
            _write(folder, signatures)
        for trainer, section in profile.trainers.items():
            if section.arguments_table:
                table = folder / f"{trainer}.arguments.json"
                shutil.copyfile(section.arguments_table, table)
                data["trainers"][trainer]["arguments_table"] = str(table)
        write_new(path, json.dumps(_literal(data), indent=1, ensure_ascii=False) + "\n")
    except BaseException as error:
        remove(own)
        if isinstance(error, FileExistsError):
            raise PinError(f"{error.filename} exists; choose another --name") from None
        if isinstance(error, OSError):
            raise PinError(
                f"{error.filename or path}: {error.strerror}; name a current profile with --cluster"
            ) from None
        raise
    return [path, folder]


def write_new(path: Path, text: str) -> None:
    """Write a file that must not exist yet; nothing is left of a file that cannot be written completely.

    :raises FileExistsError: if it exists
    :raises OSError: if it cannot be written
    """
    file = path.open("x", encoding="utf-8")
    try:
        with file:
            file.write(text)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def remove(written: list[Path]) -> None:
    """Remove files and folders that this command has made."""
    for path in written:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _write(folder: Path, texts: Any) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def _literal(value: Any) -> Any:
    """Return plain data whose texts are unchanged by the evaluation of expressions."""
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal(item) for item in value]
    if isinstance(value, str) and any(sign in value for sign in _EXPRESSIONS):
        return f"{{{{ {json.dumps(value)} }}}}"
    return value
