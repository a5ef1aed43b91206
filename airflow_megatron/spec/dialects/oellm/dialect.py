"""Sweep specs in oellm-autoexp's format: ``sweep:``, ``job:``, ``backend:``, ``slurm:`` in one file.

Each point of its ``sweep:`` block is one job. Points that refer to each other by ``${sibling.STAGE.…}`` make one point
here, with their stages as its stage tree.
"""

from __future__ import annotations

import functools
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_megatron.spec.dialects.oellm.errors import FilePlaces, JobError, SiblingError
from airflow_megatron.spec.dialects.oellm.jobs import (
    OPENEUROLLM,
    Place,
    build_job,
    neighbour,
    waits_of,
)
from airflow_megatron.spec.dialects.oellm.keys import of_other_kinds, passed_over
from airflow_megatron.spec.dialects.oellm.postprocess import (
    each_converted,
    interval_of,
    step_values,
    steps_of,
)
from airflow_megatron.spec.dialects.oellm.shapes import (
    Built,
    Shape,
    ShapeBuilder,
    stages_looked_at,
    without_parent,
)
from airflow_megatron.spec.dialects.oellm.siblings import (
    Siblings,
    stage_of,
)
from airflow_megatron.spec.dialects.oellm.sources import below_project, mistaken_source
from airflow_megatron.spec.dialects.oellm.sweep import Expansion, SweepPoint, expand
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.foreign.foreign_sweep import ForeignSweep
from airflow_megatron.spec.foreign.interpolation.configuration import (
    Configuration,
    ConfigurationError,
    ResolutionContext,
    with_parameters,
)
from airflow_megatron.spec.foreign.omegaconf_yaml import load_omegaconf_yaml, take_over
from airflow_megatron.spec.foreign.sidecar import NO_SIDECAR
from airflow_megatron.spec.layout.run_layout import SweepLayout
from airflow_megatron.spec.model.cluster_profile import cluster_names, profile_path
from airflow_megatron.spec.model.sweep import Point, SweepSettings, named_clusters
from airflow_megatron.spec.trust.permitted_variables import permitted_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from airflow_megatron.spec.dialects.oellm.conditions import Neighbour
    from airflow_megatron.spec.dialects.oellm.siblings import Family
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.foreign.megatron_metadata import ForkArguments
    from airflow_megatron.spec.foreign.sidecar import Sidecar
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.schema import SlurmSection, StageKindName
    from airflow_megatron.spec.model.stage_tree import StageInstance

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._=+-]+")
_GROUP_LIST = re.compile(r"\[[A-Za-z][A-Za-z0-9,]*\]\Z")
_MAX_NAME = 120
_UNPLACED = "/"

Choices = tuple[tuple[str, Any], ...]
"""Configuration groups that a point switches: group → option."""


def load(document: YamlDocument, sidecar: Sidecar = NO_SIDECAR) -> OellmSweep:
    """Load a configuration of oellm-autoexp from one file.

    :raises SpecError: with the places of what is wrong
    """
    if isinstance(document.data.get("defaults"), list):
        raise SpecError(
            document.problem(
                ("defaults",),
                "the file takes parts from other files by a Hydra defaults list",
                "run: airflow-megatron import oellm --config-dir DIR --config-name NAME",
            )
        )
    own, warnings = load_omegaconf_yaml(document.text, document.file, text_keys=True)
    take_over(own, document)
    sidecar.place_in(own)
    return OellmSweep(own, own.data, sidecar=sidecar, reading_warnings=warnings)


class OellmSweep(ForeignSweep):
    """A sweep of oellm-autoexp.

    :param document: the YAML behind it, for messages
    :param root: the configuration; the document's data, or what Hydra composed
    :param name: of the sweep; the file's name when left out
    :param compose: gives the configuration with groups switched; None if a file stands alone
    :param environment: the variables of ``oc.env``
    :param timestring: the answer of ``oc.timestring``, which is refused without one
    :param sidecar: the sidecar of the file
    :param reading_warnings: what was odd when the file was read
    :param fork: the arguments of the Megatron that it runs
    """

    def __init__(
        self,
        document: YamlDocument,
        root: dict[str, Any],
        *,
        name: str | None = None,
        compose: Callable[[Choices], dict[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
        timestring: str | None = None,
        sidecar: Sidecar = NO_SIDECAR,
        reading_warnings: Sequence[Problem] = (),
        fork: ForkArguments = OPENEUROLLM,
    ) -> None:
        self._root = root
        self.fork = fork
        self.sidecar = sidecar
        self._compose = compose
        self._composed: dict[Choices, dict[str, Any]] = {}
        self._context = ResolutionContext(
            permitted_variables() if environment is None else environment, timestring, document
        )
        self._warnings = list(reading_warnings)
        self._loaded: list[tuple[StageKindName, str]] = []
        self.document = document
        self.file_places = FilePlaces(document, root)
        self.name = sidecar.section.name or name or _NOT_IN_NAMES.sub("_", Path(document.file).stem)
        try:
            settings = self._settings()
            self._shapes: dict[tuple[Any, ...], Shape] = {}
            tree = self._tree(settings.cluster)
        except (ConfigurationError, JobError, SiblingError) as error:
            raise SpecError(self.file_places.problem(error)) from error
        super().__init__(self.name, document, settings, tree, sidecar)

    @functools.cached_property
    def expansion(self) -> Expansion:
        """The points of the sweep block, before filters, and its warnings.

        :raises SpecError: on a malformed block
        """
        try:
            block = Configuration(self._root, self._context).get("sweep")
        except ConfigurationError as error:
            raise SpecError(self.file_places.problem(error)) from error
        return expand(block, self.document)

    @functools.cached_property
    def _siblings(self) -> Siblings:
        return Siblings(self.expansion.points)

    @functools.cached_property
    def families(self) -> list[Family]:
        """The points of the sweep block, grouped by their references.

        :raises SiblingError: if a sibling does not exist or siblings wait for each other
        """
        return self._siblings.families()

    @functools.cached_property
    def _shape_builder(self) -> ShapeBuilder:
        return ShapeBuilder(self._siblings, self.families, self.configuration)

    @functools.cached_property
    def _varying(self) -> frozenset[str]:
        """The swept keys that differ between points, and not only between stages of one point."""
        values: dict[tuple[str, str], str] = {}
        varying: set[str] = set()
        for point in self.expansion.points:
            stage = stage_of(point) if len(self.families) < len(self.expansion.points) else ""
            for key in point.swept:
                if key not in varying:
                    text = repr(point.parameters[key])
                    if values.setdefault((stage, key), text) != text:
                        varying.add(key)
        return frozenset(varying)

    @functools.cached_property
    def _members(self) -> dict[str, Family]:
        return {}

    def warnings(self) -> list[Problem]:
        """Return warnings about what is allowed but probably unintended."""
        of_resolvers = [self.document.problem((), text) for text in self._context.warnings]
        of_siblings = [
            self.file_places.warning_beside(reference, text)
            for reference, text in self._siblings.warnings.items()
        ]
        of_sources = [
            self.file_places.warning(text)
            for kind, path in self._loaded
            if (text := mistaken_source(kind, path, self._upstream_writers))
        ]
        return list(
            dict.fromkeys(
                [
                    *self.expansion.warnings,
                    *self._warnings,
                    *of_sources,
                    *of_siblings,
                    *of_resolvers,
                    *self.unused_settings(),
                ]
            )
        )

    def family(self, point: Point) -> Family:
        """Return the points of the sweep block that form one point of this package."""
        _ = self.points
        return self._members[point.name]

    def own_jobs(self, point: Point, cluster: ClusterProfile) -> list[Job]:
        """Return the jobs of one point, parents first.

        :raises SpecError: if a value cannot be resolved
        """
        family = self.family(point)
        directory = SweepLayout.of(cluster.run_root, self.name).point(point.name).run_dir
        try:
            return [job for job, _ in self.build(family, point.name, cluster.name, directory, cluster.slurm)]
        except (ConfigurationError, JobError, SiblingError) as error:
            raise SpecError(self.file_places.problem(error, point.name)) from error

    def shared_jobs(self, cluster: ClusterProfile) -> list[Job]:
        """Return an empty list: no job of oellm-autoexp belongs to all points."""
        return []

    def names_of(self, point: Point) -> Mapping[str, Any]:
        """Return the swept values by the last part of their keys."""
        return {key.rpartition(".")[2]: value for key, value in point.values.items()}

    def place_of(self, stage: str, name: str) -> KeyPath:
        """Return the place of a stage's parameter in the document."""
        keys = (f"backend.megatron.{name}", f"slurm.sbatch.{name}", name)
        known = (self.file_places.of_key(key) for key in keys)
        found = next((path for path in known if path and str(path[-1]).endswith(name)), None)
        if found is None and name == "options":
            found = self.file_places.of_key("slurm.sbatch")
        return found or ("sweep",)

    def given_at(self, point: str, stage: str, name: str) -> KeyPath:
        """Return the place of the value that a job gets for a parameter."""
        _ = self.points
        families = [self._members[point]] if point in self._members else self.families
        for family in families:
            shape = self._shapes[self._shape_builder.key(family)]
            for member, instance, steps in zip(family, shape.instances, shape.steps, strict=True):
                if stage not in (instance.name, *(step.name for step in steps)):
                    continue
                for key in (f"backend.megatron.{name}", f"slurm.sbatch.{name}", name):
                    if path := self.file_places.of_value(key, member.parameters):
                        return path
                return ()
        return ()

    def argument_key(self, argument: str) -> str:
        """Return the dotted key of an argument that the file gives."""
        key = f"backend.megatron.{argument}"
        members = (member for family in self.families for member in family)
        return key if any(key in member.parameters for member in members) else ""

    def key_of(self, name: str, section: str) -> str:
        """Return the dotted key of a parameter."""
        return f"backend.{section}.{name}: …" if section == "megatron" else f"backend.{name}: …"

    def configuration(
        self,
        point: SweepPoint,
        places: Mapping[int, Place] | None = None,
        made: dict[int, Configuration] | None = None,
    ) -> Configuration:
        """Return the configuration of one point, unresolved.

        :param places: index of a point → where its job stands; without it, directories are those of the file
        :param made: configurations made so far, which siblings share
        """
        made = {} if made is None else made
        known = made.get(point.index)
        if known is not None:
            return known
        root = self._root_of(point)

        def sibling(stage: str) -> Configuration:
            return self.configuration(self._siblings.find(point, stage), places, made)

        given = _given(root, places[point.index]) if places and point.index in places else None
        configuration = self._configuration_of(root, point, given, sibling)
        made[point.index] = configuration
        return configuration

    def _configuration_of(
        self,
        root: dict[str, Any],
        point: SweepPoint,
        given: Mapping[tuple[str, ...], Any] | None,
        sibling: Callable[[str], Configuration] | None,
    ) -> Configuration:
        label = stage_of(point) or f"point {point.index}"
        return Configuration(
            root, self._context, given=given, aliases=_aliases(root), sibling=sibling, label=label
        )

    def build(
        self,
        family: Family,
        point: str,
        cluster: str,
        directory: str,
        slurm: SlurmSection | None = None,
    ) -> list[tuple[Job, Configuration]]:
        """Return the jobs of one family with their configurations.

        :param directory: directory of the point
        :param slurm: resources of the cluster profile
        :raises ConfigurationError, JobError, SiblingError: if one cannot be made
        """
        shape = self._shapes[self._shape_builder.key(family)]
        kept: list[tuple[Job, Configuration]] = []
        dropped: set[str] = set()
        for made in self._built(family, shape, point, cluster, directory, slurm):
            parentless = made.instance.parent in dropped
            if parentless if made.is_step else not self._passes(made.member, made.configuration):
                dropped.add(made.job.stage)
            else:
                kept.append((without_parent(made.job) if parentless else made.job, made.configuration))
        return kept

    def kept_jobs(self, family: Family, point: str, cluster: str, directory: str) -> list[Job]:
        """Return the jobs of one family without those that a filter drops, whose directories are those of the file.

        :param directory: directory of the point
        :raises ConfigurationError, JobError, SiblingError: if one cannot be made
        """
        made: dict[int, Configuration] = {}
        dropped = {
            member.index
            for member in family
            if self._has_filter(member) and not self._passes(member, self.configuration(member, None, made))
        }
        shape = self._shapes[self._shape_builder.key(family)]
        return [built.job for built in self._built(family, shape, point, cluster, directory, None, dropped)]

    def _built(
        self,
        family: Family,
        shape: Shape,
        point: str,
        cluster: str,
        directory: str,
        slurm: SlurmSection | None = None,
        dropped: Collection[int] = (),
    ) -> Iterator[Built]:
        """Yield the jobs of one family; the job of a point comes before its postprocessing.

        :param dropped: indices of the points without a job
        """
        places = self._places(family, shape, point, cluster, directory)
        for index in dropped:
            del places[index]
        configurations: dict[int, Configuration] = {}
        made: list[tuple[Job, Neighbour]] = []
        for member, instance, following in zip(family, shape.instances, shape.steps, strict=True):
            if member.index in dropped:
                continue
            place = places[member.index]
            configuration = self.configuration(member, places, configurations)
            try:
                job, warnings = build_job(configuration, place, made, slurm, self.fork)
            except JobError as error:
                error.parameters = member.parameters
                raise
            made.append((job, neighbour(job, configuration)))
            yield Built(
                member, instance, False, configuration, self._in_array(job, instance), tuple(warnings)
            )
            if not following:
                continue
            steps = steps_of(configuration, job.kind)
            for step, own in zip(steps, following, strict=True):
                own_place = replace(place, stage=own.name, branch=own.branch, parent=own.parent)
                changed = self._step_configuration(
                    member, step_values(step, steps, configuration, place.run_dir), own_place, configuration
                )
                step_job, _ = build_job(changed, own_place, made, slurm, self.fork)
                every = interval_of(step, configuration)
                if every:
                    step_job = each_converted(step_job, job, every)
                made.append((step_job, replace(neighbour(step_job, changed), job_name="")))
                yield Built(member, own, True, changed, step_job, ())

    def _step_configuration(
        self,
        member: SweepPoint,
        values: Mapping[str, Any],
        place: Place,
        training: Configuration,
    ) -> Configuration:
        root = with_parameters(self._root_of(member), values)
        return self._configuration_of(root, member, _given(root, place), training.sibling)

    def _in_array(self, job: Job, instance: StageInstance) -> Job:
        if not instance.array:
            return job
        return msgspec.structs.replace(job, array=self.settings.max_active_points)

    def _places(
        self, family: Family, shape: Shape, point: str, cluster: str, directory: str
    ) -> dict[int, Place]:
        first = next((instance.branch for instance in shape.instances if instance.branch), None)
        places: dict[int, Place] = {}
        for member, instance in zip(family, shape.instances, strict=True):
            if instance.branch is None:
                run_dir = f"{directory}/{instance.name}"
            else:
                run_dir = directory if instance.branch == first else f"{directory}/{instance.branch}"
            places[member.index] = Place(
                self.name,
                point,
                instance.name,
                cluster,
                run_dir,
                instance.branch,
                instance.parent,
                self._swept_keys(member),
            )
        return places

    def _root_of(self, point: SweepPoint) -> dict[str, Any]:
        parameters: dict[str, Any] = {"index": point.index}
        choices: list[tuple[str, Any]] = []
        for key, value in point.parameters.items():
            if _GROUP_LIST.match(value) if isinstance(value, str) else False:
                value = value[1:-1].split(",")
            if self._is_group(key, value):
                choices.append((key, tuple(value) if isinstance(value, list) else value))
            else:
                parameters[key] = value
        root = self._root
        if choices:
            if self._compose is None:
                key, value = choices[0]
                raise JobError(
                    f"{key}: {value} takes the option {value} of a Hydra configuration group, which needs its files",
                    key,
                    "run: airflow-megatron import oellm --config-dir DIR --config-name NAME",
                )
            wanted = tuple(choices)
            if wanted not in self._composed:
                self._composed[wanted] = self._compose(wanted)
            root = self._composed[wanted]
        return with_parameters(root, parameters)

    def _is_group(self, key: str, value: Any) -> bool:
        if "/" in key:
            return True
        return "." not in key and isinstance(value, str | list) and isinstance(self._root.get(key), dict)

    def _settings(self) -> SweepSettings:
        """Return the settings; a cluster in the sidecar takes precedence."""
        clusters = named_clusters(self.sidecar.section.cluster or self._cluster_of_machine())
        return SweepSettings(description="oellm-autoexp sweep", tags=("oellm-autoexp",), **clusters)

    def _cluster_of_machine(self) -> str:
        """Return the cluster profile that ``MACHINE_NAME`` names."""
        machine = ""
        configuration = Configuration(self._root, self._context)
        for key in ("slurm.env.MACHINE_NAME", "container.env.MACHINE_NAME"):
            machine = machine or str(configuration.get(key) or "").lower()
        cluster = SweepSettings.cluster
        if machine in cluster_names():
            cluster = machine
        elif machine:
            self._warnings.append(
                self.document.problem(
                    ("slurm", "env", "MACHINE_NAME"),
                    f"there is no cluster profile {machine!r}; the sweep goes to {cluster!r}",
                    f"write {profile_path(machine)}, or cluster: … into the file's sidecar",
                )
            )
        return cluster

    def _tree(self, cluster: str) -> tuple[StageInstance, ...]:
        tree: dict[str, StageInstance] = {}
        for family in self.families:
            key = self._shape_builder.key(family)
            if key in self._shapes:
                continue
            shape = self._with_waits(family, self._shape_builder.new(family, tree), cluster)
            self._shapes[key] = shape
            for instance in shape.tree:
                tree.setdefault(instance.name, instance)
        kinds = {instance.kind for instance in tree.values()}
        for unread, text in of_other_kinds(self._root.get("backend"), kinds):
            self._warnings.append(self.file_places.warning_at(unread, text))
        return tuple(tree.values())

    def _with_waits(self, family: Family, shape: Shape, cluster: str) -> Shape:
        """Return a shape with the conditions of its stages from the jobs of a family; record ignored ones."""
        built = list(self._built(family, shape, "point", cluster, _UNPLACED))
        jobs = [made.job for made in built]
        instances: dict[str, StageInstance] = {}
        for made in built:
            instances[made.instance.name] = replace(
                made.instance,
                waits=waits_of(made.job),
                after=stages_looked_at(made.job, made.instance, jobs),
                array=self._is_array(made),
            )
            self._warnings.extend(self.file_places.warning(text) for text in made.warnings)
            if made.job.source is not None:
                self._loaded.append((made.job.kind, made.job.source.path))
            if not made.is_step:
                for key, text in passed_over(made.configuration, made.member.swept):
                    self._warnings.append(self.file_places.warning_at(key, text))
        return Shape(
            tuple(instances[instance.name] for instance in shape.instances),
            tuple(tuple(instances[step.name] for step in steps) for steps in shape.steps),
        )

    @functools.cached_property
    def _upstream_writers(self) -> dict[str, SweepPoint]:
        """The directories of the jobs in oellm-autoexp, with their points."""
        found: dict[str, SweepPoint] = {}
        for point in self.expansion.points:
            configuration = self.configuration(point)
            with suppress(ConfigurationError, JobError, SiblingError):
                for section in ("job", "project"):
                    directory = configuration.get(f"{section}.base_output_dir")
                    if isinstance(directory, str) and directory:
                        place = below_project(directory, self._context.environment.get("PROJECT_DIR"))
                        found.setdefault(str(PurePosixPath(place)), point)
        return found

    def _is_array(self, made: Built) -> bool:
        """Return whether the jobs of all points are submitted as one array (``slurm.array: true``).

        The README's arrays; what stands at c6d0cc0 names directories by it and submits each job alone.
        """
        wanted = made.configuration.get("slurm.array")
        if not isinstance(wanted, bool | None):
            raise JobError(f"slurm.array is {wanted!r}, not true or false", "slurm.array")
        if made.is_step or not wanted:
            return False
        if made.instance.parent is None and made.job.start is None:
            return True
        text = f"slurm.array: the tasks of an array start together; the jobs of {made.job.stage}, which wait, do not"
        self._warnings.append(self.file_places.warning_at("slurm.array", text))
        return False

    def _swept_keys(self, member: SweepPoint) -> tuple[str, ...]:
        return tuple(key for key in member.swept if key in self._varying)

    def _points(self) -> Iterator[Point]:
        try:
            named = [(self._name_of(family), family) for family in self._filtered()]
        except (ConfigurationError, JobError, SiblingError) as error:
            raise SpecError(self.file_places.problem(error)) from error
        if not named:
            raise SpecError(
                self.document.problem(("sweep",), "the sweep has no points", "its filter drops them all")
            )
        counts: dict[str, int] = {}
        for name, _ in named:
            counts[name] = counts.get(name, 0) + 1
        for name, family in named:
            suffix = f"_{family[0].index}"
            unique = name if counts[name] == 1 else f"{name[: _MAX_NAME - len(suffix)]}{suffix}"
            if unique in self._members:
                raise SpecError(
                    self.document.problem(
                        ("job", "name"), f"two points are named {unique!r}", "use the swept values"
                    )
                )
            self._members[unique] = family
            values: dict[str, Any] = {}
            for member in family:
                for key in member.swept:
                    value = member.parameters[key]
                    if key in self._varying and not isinstance(value, dict | list):
                        values.setdefault(key, value)
            yield Point(unique, values, tuple(key.rpartition(".")[2] for key in values))

    def _filtered(self) -> Iterator[Family]:
        for family in self.families:
            made: dict[int, Configuration] = {}
            if any(
                self._passes(member, self.configuration(member, None, made))
                if self._has_filter(member)
                else True
                for member in family
            ):
                yield family

    def _has_filter(self, member: SweepPoint) -> bool:
        return bool(member.filters) or self._block_filter not in (None, True)

    @functools.cached_property
    def _block_filter(self) -> Any:
        return Configuration(self._root, self._context).get("sweep.filter", True)

    def _passes(self, member: SweepPoint, configuration: Configuration) -> bool:
        for condition in (self._block_filter, *member.filters):
            value = condition
            if isinstance(condition, str):
                value = configuration.expression(condition)
            if value is None:
                continue
            if not isinstance(value, bool):
                raise ConfigurationError(
                    f"filter gives {value!r}, not true or false",
                    str(condition),
                    "write a comparison in oc.eval",
                )
            if not value:
                return False
        return True

    def _name_of(self, family: Family) -> str:
        made: dict[int, Configuration] = {}
        names = [self._job_name(self.configuration(member, None, made), member) for member in family]
        name = names[0]
        if len(names) > 1:
            name = _common_beginning(names).rstrip("_-. ") or names[0]
        name = _NOT_IN_NAMES.sub("_", name).strip("_-.=+")
        return name[:_MAX_NAME] or f"point_{family[0].index}"

    @staticmethod
    def _job_name(configuration: Configuration, member: SweepPoint) -> str:
        for key in ("job.name", "project.name"):
            name = configuration.get(key)
            if isinstance(name, list | dict):
                raise JobError(f"{key} is {name!r}, not a text", key)
            if name:
                return str(name).replace("%a", str(member.index))  # upstream's place for the index
        return f"point_{member.index}"


def _common_beginning(names: Sequence[str]) -> str:
    alike = 0
    while alike < min(map(len, names)) and len({name[alike] for name in names}) == 1:
        alike += 1
    return names[0][:alike]


def _given(root: Mapping[str, Any], place: Place) -> dict[tuple[str, ...], Any]:
    """Return the values that this package sets: the paths of a job."""
    given: dict[tuple[str, ...], Any] = {}
    for section in ("job", "project"):
        if section == "job" or section in root:
            given[section, "base_output_dir"] = place.run_dir
            given[section, "log_path"] = given[section, "log_path_current"] = place.log
    return given


def _aliases(root: Mapping[str, Any]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the README, ``${sibling.STAGE.output_dir}``, and those of its implementation."""
    job = root.get("job")
    section = "project" if "project" in root and not (isinstance(job, dict) and "name" in job) else "job"
    names = {
        "name": "name",
        "output_dir": "base_output_dir",
        "log_path": "log_path",
        "log_path_current": "log_path_current",
    }
    return {(short,): (section, name) for short, name in names.items()}
