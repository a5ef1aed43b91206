"""The cluster profile that a sweep is planned for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.errors import SpecError, did_you_mean
from airflow_megatron.spec.model.cluster_profile import cluster_names, load_cluster, profile_path

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.sweep import Sweep


def sweep_cluster(sweep: Sweep, other: str | None = None) -> ClusterProfile:
    """Return the profile of a sweep's own cluster, or of another one.

    :param other: name of a profile that a person has chosen instead of the spec's own
    :raises SpecError: when there is no such profile, at the line of the spec or its sidecar that names it; when the
        profile is wrong
    """
    name = other or sweep.settings.cluster
    if name == sweep.settings.cluster and name not in (known := cluster_names()):
        hint = did_you_mean(name, known) or f"known: {', '.join(known)}; or write {profile_path(name)}"
        raise SpecError(sweep.document.problem(("cluster",), f"there is no cluster profile {name!r}", hint))
    return load_cluster(name)
