"""The cluster profile that a sweep is planned for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.spec.documents.errors import SpecError, did_you_mean
from airflow_megatron.spec.model.cluster_profile import cluster_names, load_cluster, profile_path

if TYPE_CHECKING:
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.sweep import Sweep


def sweep_cluster(sweep: Sweep, other: str | None = None) -> ClusterProfile:
    """Return the cluster profile of a sweep, or another chosen profile.

    :param other: name of a profile that a user has chosen instead of that of the spec
    :raises SpecError: if the profile does not exist (with the line of the spec or its sidecar that names it) or is
        invalid
    """
    name = other or sweep.settings.cluster
    if name == sweep.settings.cluster and name not in (known := cluster_names()):
        hint = did_you_mean(name, known) or f"known: {', '.join(known)}; or write {profile_path(name)}"
        raise SpecError(sweep.document.problem(("cluster",), f"there is no cluster profile {name!r}", hint))
    return load_cluster(name)
