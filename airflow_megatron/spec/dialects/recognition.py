"""Recognition of a document's format without loading the modules that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

AUTOEXPERIMENT_KEYS: Final = ("name", "output_file", "cmd", "sbatch_script")
"""What every job of an AutoExperiment file must have."""
_AUTOEXPERIMENT_MARKS = frozenset({*AUTOEXPERIMENT_KEYS, "template"})
_NOT_AUTOEXPERIMENT = frozenset({"stages", "sweep", "job", "backend"})
"""Sections of other formats; with a plain value or a list, such a word is a key of the user's own."""
_OELLM_SECTIONS = frozenset({"job", "backend", "slurm", "project"})
_NOT_OELLM = frozenset({"stages", "point", "benchmark", "extends"})

_LIKELY_AUTOEXPERIMENT: Final = frozenset(
    {
        *AUTOEXPERIMENT_KEYS[1:],
        "start_condition_cmd",
        "termination_cmd",
        "termination_str",
        "check_interval_secs",
        "template",
    }
)
"""Fields of AutoExperiment of which one alone shows what a file may have been meant for."""
_OELLM_ONLY: Final = ("backend", "job", "project")
_NATIVE: Final = ("stages", "benchmark")


def is_autoexperiment(document: YamlDocument) -> bool:
    """Return whether a document is an AutoExperiment file: it has fields of jobs, and no sections of other formats."""
    data = document.data
    named = isinstance(data, list) and all(isinstance(item, dict) and len(item) == 1 for item in data)
    sections = data if isinstance(data, dict) else {}
    if not (named or sections) or any(isinstance(sections.get(key), dict) for key in _NOT_AUTOEXPERIMENT):
        return False
    return len({path[-1] for path in document.positions if path} & _AUTOEXPERIMENT_MARKS) >= 3


def is_oellm(document: YamlDocument) -> bool:
    """Return whether a document is a configuration of oellm-autoexp, or refers to one in a defaults list."""
    data = document.data
    if not isinstance(data, dict) or _NOT_OELLM & data.keys():
        return False
    if isinstance(data.get("defaults"), list):
        return True
    if isinstance(data.get("sweep"), dict):
        return bool(_OELLM_SECTIONS & data.keys())
    return isinstance(data.get("backend"), dict)


def likely_meant(document: YamlDocument) -> Problem | None:
    """Return what an invalid native document lacks to be one of another format, if it looks like one."""
    data = document.data
    if (
        not isinstance(data, dict)
        or any(isinstance(data.get(key), dict) for key in _NATIVE)
        or "point" in data
    ):
        return None
    fields: dict[str, KeyPath] = {}
    for path in document.positions:
        if path and path[-1] in _LIKELY_AUTOEXPERIMENT:
            fields.setdefault(str(path[-1]), path)
    known = {path[-1] for path in document.positions if path}
    missing = [key for key in AUTOEXPERIMENT_KEYS if key not in known]
    if fields and missing and not any(isinstance(data.get(key), dict) for key in _NOT_AUTOEXPERIMENT):
        first, path = next(iter(fields.items()))
        return document.problem(
            path,
            f"{first} is a field of AutoExperiment, and as a file of that tool this one lacks {', '.join(missing)}",
            f"give every job {', '.join(AUTOEXPERIMENT_KEYS)}; or write a native spec, with point: and stages:",
        )
    section = next((key for key in _OELLM_ONLY if isinstance(data.get(key), dict)), None)
    if section is None:
        return None
    return document.problem(
        (section,),
        f"{section}: is a section of oellm-autoexp, and as a file of that tool this one lacks sweep: or backend:",
        "add backend: with the training, or a defaults list that names one; or write a native spec, with point: and"
        " stages:",
    )
