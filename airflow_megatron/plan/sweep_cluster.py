"""The cluster profiles that a sweep is planned for."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from airflow_megatron.checks.sweeps.site_rules import refused_option_problems
from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.project import check_configured_folders
from airflow_megatron.spec.model.cluster_profile import cluster_names, load_cluster, profile_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_megatron.spec.documents.yaml_document import KeyPath
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.sweep import Sweep


def sweep_cluster(sweep: Sweep, other: str | None = None) -> ClusterProfile:
    """Return the only cluster profile of a sweep, or another chosen profile.

    :param other: name of a profile that a user has chosen instead of those of the spec
    :raises SpecError: if the profile does not exist (with the line of the spec or its sidecar that names it) or is
        invalid, or if the spec names several and none is chosen
    """
    if not other and (names := sweep.settings.clusters):
        message = f"{sweep.name} names several clusters ({', '.join(names)}), and this works on one"
        raise SpecError(
            sweep.document.problem(
                ("cluster",), message, f"choose one: --cluster {names[0]}, or --set cluster={names[0]}"
            )
        )
    return sweep_clusters(sweep, other)[0]


def sweep_clusters(sweep: Sweep, other: str | None = None) -> tuple[ClusterProfile, ...]:
    """Return the cluster profiles of a sweep, or another chosen profile.

    :param other: as for :func:`sweep_cluster`
    :raises SpecError: if a profile does not exist or is invalid, or if the sweep cannot be distributed among them
    """
    check_configured_folders()
    known = cluster_names()
    names = (other,) if other else sweep.settings.all_clusters
    for index, name in enumerate(names):
        if name in sweep.settings.all_clusters and name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(known)}; or write {profile_path(name)}"
            message = f"there is no cluster profile {name!r}"
            raise SpecError(sweep.document.problem(_place(sweep, index), message, hint))
    if len(names) > 1 and (repeated := [name for name in names if names.count(name) > 1]):
        message = f"cluster names {repeated[0]!r} more than once"
        raise SpecError(sweep.document.problem(("cluster",), message, "name each profile once"))
    profiles = tuple(load_cluster(name) for name in names)
    if problems := [problem for profile in profiles for problem in refused_option_problems(profile)]:
        raise SpecError(problems)
    if len(profiles) > 1 and (wrong := list(_distribution_problems(sweep, profiles))):
        raise SpecError(wrong)
    return profiles


def _distribution_problems(sweep: Sweep, profiles: Sequence[ClusterProfile]) -> Iterator[Problem]:
    """Yield why the points of a sweep cannot be distributed among several clusters."""
    roots: dict[str, str] = {}
    for index, profile in enumerate(profiles):
        root = posixpath.normpath(profile.run_root)
        first = roots.setdefault(root, profile.name)
        if first != profile.name:
            yield sweep.document.problem(
                _place(sweep, index),
                f"the clusters {first} and {profile.name} have the same run_root, {root}: run directories on them "
                "could not be distinguished",
                f"give {profile_path(profile.name)} its own run_root, such as {root}/{profile.name}",
            )
    for instance in sweep.tree:
        if instance.array:
            yield sweep.document.problem(
                sweep.place_of(instance.name, "array"),
                f"the stage {instance.name} is submitted as job arrays before points have a cluster, and the sweep "
                f"names several ({', '.join(profile.name for profile in profiles)})",
                "remove array: true, or name one cluster",
            )


def _place(sweep: Sweep, index: int) -> KeyPath:
    """Return the place of a cluster's name, in a list or alone."""
    return ("cluster", index) if ("cluster", index) in sweep.document.positions else ("cluster",)
