"""Outline of a sweep for Airflow's DAGs, small enough to be stored with its spec's digest."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_megatron.spec.model.dag_names import waits
from airflow_megatron.spec.model.schema import NotifySection, TrackerSection
from airflow_megatron.spec.model.stage_tree import StageInstance
from airflow_megatron.spec.model.sweep import SweepSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_megatron.spec.model.sweep import Sweep


@dataclass(frozen=True)
class SweepOutline:
    """Name, settings and stages of a sweep, without its points and values.

    :param name: name of the sweep and its DAG

    :param file: the spec
    :param settings: settings for Airflow
    :param tree: the stages, parents first
    :param place: line and column of the name, 1-based
    """

    name: str
    file: str
    settings: SweepSettings
    tree: tuple[StageInstance, ...]
    place: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, sweep: Sweep, tags: Iterable[str] = ()) -> SweepOutline:
        """Return the outline of a loaded sweep.

        :param tags: tags of the DAGs, in addition to those of the spec
        """
        settings = dataclasses.replace(
            sweep.settings, tags=tuple(dict.fromkeys((*sweep.settings.tags, *tags)))
        )
        named = sweep.document.problem(("name",), "")
        return cls(sweep.name, sweep.document.file, settings, sweep.tree, (named.line, named.column))

    @property
    def shared_stages(self) -> tuple[StageInstance, ...]:
        """The stages that run once for all points."""
        return tuple(instance for instance in self.tree if instance.scope == "sweep")

    @property
    def weight(self) -> int:
        """What its DAGs cost each parse, in stages: a stage that another waits for costs a thirtieth of one."""
        return len(self.tree) + waits(self.tree) // 30

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        data = dataclasses.asdict(dataclasses.replace(self, settings=SweepSettings()))
        settings = dataclasses.asdict(dataclasses.replace(self.settings, notify=(), trackers=()))
        if not self.settings.clusters:  # outlines of sweeps with one cluster have kept their digests
            del settings["clusters"]
        notify = [section.model_dump(mode="json") for section in self.settings.notify]
        trackers = [section.model_dump(mode="json") for section in self.settings.trackers]
        return {**data, "settings": {**settings, "notify": notify, "trackers": trackers}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SweepOutline:
        """Parse the output of :meth:`to_json`.

        :raises ValueError: for other data
        """
        try:
            settings = dict(data["settings"])
            settings["tags"] = tuple(settings["tags"])
            settings["clusters"] = tuple(settings.get("clusters", ()))
            settings["notify"] = tuple(NotifySection.model_validate(one) for one in settings["notify"])
            settings["trackers"] = tuple(
                TrackerSection.model_validate(one) for one in settings.get("trackers", ())
            )
            tree = tuple(
                StageInstance(**{**one, "after": tuple(one["after"]), "after_end": tuple(one["after_end"])})
                for one in data["tree"]
            )
            line, column = data["place"]
            return cls(data["name"], data["file"], SweepSettings(**settings), tree, (line, column))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no outline of a sweep: {error!r}") from error
