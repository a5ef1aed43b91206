"""Sweep: the result of reading a spec in any language."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import NotifySection, TrackerSection
    from airflow_megatron.spec.model.stage_tree import StageInstance


@dataclass(frozen=True)
class Point:
    """One combination of swept values.

    :param name: unique in the sweep; also the run id of its DAG run
    :param values: values from the sweep, expressions not yet evaluated
    :param swept: the keys that vary, in document order; ``stage.key`` varies for that stage only
    """

    name: str
    values: Mapping[str, Any]
    swept: tuple[str, ...]


@dataclass(frozen=True)
class SweepSettings:
    """The settings of a sweep for Airflow.

    :param description: text above the DAG
    :param cluster: name of the cluster profile, the first of several
    :param clusters: names of the profiles among which the points are distributed; empty for one profile
    :param tags: tags of the DAGs
    :param max_active_points: maximum number of active points
    :param poll_interval: seconds between two polls of the cluster
    :param max_jobs: maximum number of jobs in the queue, None for no limit
    :param notify: the notifiers and their notices
    :param trackers: trackers that receive the records of trainings
    """

    description: str = ""
    cluster: str = "local"
    tags: tuple[str, ...] = ()
    max_active_points: int = 16
    poll_interval: float = 15.0
    max_jobs: int | None = None
    notify: tuple[NotifySection, ...] = ()
    trackers: tuple[TrackerSection, ...] = ()
    clusters: tuple[str, ...] = ()

    @property
    def all_clusters(self) -> tuple[str, ...]:
        """The names of all cluster profiles."""
        return self.clusters or (self.cluster,)

    @property
    def chosen_cluster(self) -> str | None:
        """The profile on which a run works unless a user chooses one; None to choose one for each point."""
        return None if self.clusters else self.cluster


def named_clusters(value: str | Sequence[str]) -> dict[str, Any]:
    """Return the settings of :class:`SweepSettings` for the value of ``cluster:``; a list of one name is that name."""
    names = (value,) if isinstance(value, str) else tuple(value)
    return {"cluster": names[0], "clusters": names if len(names) > 1 else ()}


class Sweep(ABC):
    """A loaded sweep spec. Loading checks the document and the stage tree; points are expanded on first use.

    :param name: name of the sweep and its DAG
    :param document: its YAML document, for messages
    :param settings: settings for Airflow
    :param tree: its stages, parents first
    """

    def __init__(
        self, name: str, document: YamlDocument, settings: SweepSettings, tree: tuple[StageInstance, ...]
    ) -> None:
        self.name = name
        self.document = document
        self.settings = settings
        self.tree = tree

    @functools.cached_property
    def points(self) -> tuple[Point, ...]:
        """The points in document order.

        :raises SpecError: on an invalid sweep block, a failing expression, a repeated or invalid name
        """
        return tuple(self._points())

    @functools.cached_property
    def _points_by_name(self) -> Mapping[str, Point]:
        return {point.name: point for point in self.points}

    @property
    def shared_stages(self) -> tuple[StageInstance, ...]:
        """The stages that run once for all points."""
        return tuple(instance for instance in self.tree if instance.scope == "sweep")

    def point(self, name: str) -> Point:
        """Return the point called ``name``.

        :raises SpecError: if there is none
        """
        try:
            return self._points_by_name[name]
        except KeyError:
            some = ", ".join(point.name for point in self.points[:8])
            hint = did_you_mean(name, self._points_by_name) or f"it has {some} …"
            raise SpecError(
                self.document.problem(("point",), f"the sweep has no point {name!r}", hint)
            ) from None

    @abstractmethod
    def jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point, including those of the whole sweep, parents first.

        :raises SpecError: if an expression of a stage fails
        """

    @abstractmethod
    def shared_jobs(self, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs that run once for all points."""

    @abstractmethod
    def names_of(self, point: Point) -> Mapping[str, Any]:
        """Return the values for an expression that selects points, expressions not yet evaluated."""

    def place_of(self, stage: str, name: str) -> KeyPath:
        """Return the position of a parameter of a stage in the document, for messages."""
        return (name,)

    def place_at(self, point: str, stage: str, name: str) -> KeyPath:
        """Return the position of the value that a parameter of a stage has at one point, for messages.

        :param point: name of the point; empty for a stage of the whole sweep
        """
        return self.given_at(point, stage, name) or self.place_of(stage, name)

    def given_at(self, point: str, stage: str, name: str) -> KeyPath:
        """Return the position of that value; empty if the document gives the parameter none.

        :param point: name of the point; empty for a stage of the whole sweep
        """
        return self._if_named(self.place_of(stage, name), name)

    @staticmethod
    def _if_named(place: KeyPath, name: str) -> KeyPath:
        return place if place and str(place[-1]).rpartition(".")[2] == name else ()

    def key_of(self, name: str, section: str) -> str:
        """Return how the document gives the stages a parameter, with ``…`` for its value.

        :param section: the section of a stage that has it in a native spec
        """
        return f"{section}: {{{name}: …}}"

    def in_its_keys(self, text: str, names: Iterable[str] = ()) -> str:
        """Return a message in which arguments have the names of the keys that give them in the document.

        :param names: the arguments that the message is about; others are recognised by dashes and underscores
        """
        return text

    def warnings(self) -> list[Problem]:
        """Return warnings about values that are allowed but probably unintended."""
        return []

    @abstractmethod
    def _points(self) -> Iterator[Point]: ...
