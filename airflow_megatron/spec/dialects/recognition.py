"""Recognition of a document's format without loading the modules that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_megatron.spec.documents.yaml_document import YamlDocument

AUTOEXPERIMENT_KEYS: Final = ("name", "output_file", "cmd", "sbatch_script")
"""What every job of an AutoExperiment file must have."""
_AUTOEXPERIMENT_MARKS = frozenset({*AUTOEXPERIMENT_KEYS, "template"})
_NOT_AUTOEXPERIMENT = frozenset({"stages", "sweep", "job", "backend"})
_OELLM_SECTIONS = frozenset({"job", "backend", "slurm", "project"})
_NOT_OELLM = frozenset({"stages", "point", "benchmark", "extends"})


def is_autoexperiment(document: YamlDocument) -> bool:
    """Return whether a document is an AutoExperiment file: it has fields of jobs, and no sections of other formats."""
    data = document.data
    if not isinstance(data, dict) or _NOT_AUTOEXPERIMENT & {str(key) for key in data}:
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
