"""Create a project: specs, cluster profiles and DAG files in one folder."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import yaml

from airflow_megatron.spec.documents.shipped_files import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OWN = files(__package__) / "new_project"
_OF_A_SITE: Final = {
    "It trains on a CPU in about two minutes.": "On GPUs it trains in less than a minute.",
    "micro_batch_size: 4": "micro_batch_size: 1 # 8 GPUs can share a batch",
    "slurm: {cpus_per_task: 1, time: 10m}": "slurm: {time: 10m}",
    "# The resources of each job. On GPUs add gpus_per_node, and nodes for more than one.": (
        "# The resources of each job, in addition to those of the profile. Add nodes for more than one."
    ),
}
"""Text in the first spec → its replacement for a site."""
_CLUSTER_OF_THE_FIRST: Final = "cluster: local # a profile in clusters/: change it to the name of your own"


class ProjectFile(NamedTuple):
    """A file of a project.

    :param path: relative to the project
    :param is_new: whether it was written now; otherwise it existed and was kept
    """

    path: str
    is_new: bool


def site_names() -> list[str]:
    """Return the names of the shipped profiles of real sites."""
    return sorted(path.stem for path in (shipped("sbatch") / "sites").glob("*.yaml"))


def profile_connection(site: str) -> str:
    """Return the id of the Airflow connection that the profile of a site names."""
    text = (shipped("sbatch") / "sites" / f"{site}.yaml").read_text(encoding="utf-8")
    return str(yaml.safe_load(text)["ssh_conn_id"])


def make_project(folder: Path, sites: Sequence[str] = ()) -> list[ProjectFile]:
    """Write the missing files of a project; keep existing files.

    :param sites: names of :func:`site_names` whose profiles it gets; the first sweep runs on the first of them
    :raises OSError: if the folder cannot be created or written
    """
    return [ProjectFile(path, _written(folder / path, text)) for path, text in _project_files(sites)]


def _project_files(sites: Sequence[str]) -> Iterator[tuple[str, str]]:
    yield "sweep_specs/first_sweep.yaml", first_sweep(*sites[:1])
    for name in ("local.yaml", "example-slurm.yaml"):
        yield f"clusters/{name}", (shipped("sbatch") / "clusters" / name).read_text(encoding="utf-8")
    for name in sites:
        yield (
            f"clusters/{name}.yaml",
            (shipped("sbatch") / "sites" / f"{name}.yaml").read_text(encoding="utf-8"),
        )
    for path in sorted(shipped("dags").glob("*.py")):
        yield f"dags/{path.name}", path.read_text(encoding="utf-8")


def first_sweep(site: str | None = None) -> str:
    """Return the spec of a project's first sweep.

    :param site: the site whose nodes it runs on; the local cluster if omitted
    """
    text = (_OWN / "first_sweep.yaml").read_text(encoding="utf-8")
    if site is None:
        return text
    for old, new in {
        **_OF_A_SITE,
        _CLUSTER_OF_THE_FIRST: f"cluster: {site} # a profile in clusters/",
    }.items():
        if old not in text:
            raise ValueError(f"first_sweep.yaml lacks {old!r}")
        text = text.replace(old, new)
    return text


def _written(path: Path, text: str) -> bool:
    """Write a file atomically; never overwrite an existing one.

    :return: whether it was written
    """
    if os.path.lexists(path):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(draft).chmod(0o666 & ~umask)
        with suppress(FileExistsError):
            os.link(draft, path)
            return True
        return False
    finally:
        os.unlink(draft)  # noqa: PTH108
