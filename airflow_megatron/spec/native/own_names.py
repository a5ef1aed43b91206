"""Names of a spec's own values that expressions already hold with another meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.native.sweep_grammar import swept_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.model.schema import SweepSpecSection

_OF_JOBS: Final = {
    "sweep": "name of the sweep",
    "point": "name of the point",
    "stage": "name of the stage",
    "job_name": "name of the job",
    "run_dir": "run directory of the job",
    "sweep_dir": "directory of the sweep",
    "python": "Python of the cluster profile",
    "megatron_lm_dir": "folder of the cluster profile",
    "parent": "parent stage",
    "stages": "earlier stages",
}
"""Names that a value would hide, also from expressions of the cluster profile and of specs that are extended."""
_CONSTANTS: Final = ("none", "None", "true", "True", "false", "False")
"""Words that are constants in every expression, so that a value of this name is never read."""


def taken_names(spec: SweepSpecSection, document: YamlDocument) -> Iterator[Problem]:
    """Yield the params, swept values and variables of ``for_each`` whose names expressions hold already."""
    for path, key in _own_names(spec):
        name = key.rpartition(".")[2]
        if name in _OF_JOBS:
            message = f"{key!r} would hide {{{{ {name} }}}}, the {_OF_JOBS[name]}, in expressions"
        elif name in _CONSTANTS:
            message = f"{{{{ {name} }}}} is a constant in expressions, so that nothing would read {key!r}"
        else:
            continue
        if path == ("sweep",):
            of_sweep = (place for place in document.positions if place[:1] == path and place[-1] == key)
            path = next(of_sweep, path)
        yield document.problem(path, message, f"another name: my_{name.lower()}")


def _own_names(spec: SweepSpecSection) -> Iterator[tuple[KeyPath, str]]:
    for name in spec.params:
        yield ("params", name), str(name)
    for key in swept_keys(spec.sweep):
        yield ("sweep",), str(key)
    for stage, section in spec.stages.items():
        for name in section.params:
            yield ("stages", stage, "params", name), str(name)
        for name in section.for_each or ():
            yield ("stages", stage, "for_each", name), str(name)
