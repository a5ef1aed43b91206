"""Signatures of a cluster profile, cached for a process that watches thousands of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from airflow_megatron.slurm.verdicts.signatures import pinned_catalogue, shipped_signatures, site_catalogue
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import clusters_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_megatron.slurm.verdicts.signatures import Signature


def site_signatures(files: Mapping[str, str] | Sequence[str], log: Any) -> tuple[Signature, ...]:
    """Return the catalogue of a site, read once per version of its files; the shipped one if they cannot be read.

    A file that became invalid after the check of the sweep must not end the wait for a job.

    :param files: name → content, from the run's pin; or names relative to the folder of the cluster profiles
    :param log: logger for problems
    """
    if not files:
        return shipped_signatures()
    try:
        if isinstance(files, Mapping):
            return _of_texts(tuple(files.items()))
        names = tuple(files)
        changed = tuple((clusters_dir() / name).stat().st_mtime_ns for name in names)
        return _read(names, changed)
    except (OSError, SpecError) as error:
        log.warning("the site's signatures cannot be used, only the shipped ones: %s", error)
        return shipped_signatures()


@lru_cache(maxsize=64)
def _of_texts(texts: tuple[tuple[str, str], ...]) -> tuple[Signature, ...]:
    return pinned_catalogue(dict(texts))


@lru_cache(maxsize=64)
def _read(names: tuple[str, ...], changed: tuple[int, ...]) -> tuple[Signature, ...]:
    del changed
    return site_catalogue(names)
