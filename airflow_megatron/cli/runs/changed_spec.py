"""Write a spec with replaced values to a folder that the local Airflow reads, for ``quickstart --set``."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.documents.yaml_document import load_yaml_file
from airflow_megatron.spec.native.extension import extended
from airflow_megatron.spec.native.overrides import overridden
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def write_changed_spec(path: Path, settings: Sequence[str]) -> Path:
    """Write a native spec with replaced values, under a name derived from them, and return the new file.

    Each set of values is a separate sweep, so jobs that finished with other values are not skipped or overwritten.

    :param settings: a ``key=value`` for each replaced value
    :raises SpecError: if the spec or a setting is invalid
    """
    document = overridden(extended(load_yaml_file(path)), settings)
    if "stages" not in document.data:
        raise SpecError(document.problem((), "values can be replaced only in a native spec", "edit the file"))
    check_sweep(load_sweep(path, settings))  # its messages name the settings, and no invalid file is written
    name = str(document.data.get("name") or path.stem)
    if not any(setting.startswith("name=") for setting in settings):
        name += f"-{hashlib.sha256(json.dumps(sorted(settings)).encode()).hexdigest()[:6]}"
    folder = local_dir() / "changed-specs"
    folder.mkdir(parents=True, exist_ok=True)
    changed = folder / f"{name}.yaml"
    draft = changed.with_suffix(".new")
    draft.write_text(json.dumps({**document.data, "name": name}, indent=1), encoding="utf-8")
    draft.replace(changed)
    return changed
