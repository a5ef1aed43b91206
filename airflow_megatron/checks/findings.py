"""Findings of the checks before submission, reported once instead of once for each point and stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from airflow_megatron.spec.native.overrides import OPTION
from airflow_megatron.spec.native.profile_places import ProfilePlaces

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument
    from airflow_megatron.spec.model.cluster_profile import ClusterProfile
    from airflow_megatron.spec.model.jobs import Job
    from airflow_megatron.spec.model.sweep import Sweep
    from airflow_megatron.spec.native.sweep import NativeSweep

_OF_VARIABLES: Final = ("env", "secrets")
"""Sections of environment variables, by name; files of other tools have them as a whole."""


@dataclass(frozen=True)
class Finding:
    """A property of one job that cannot work, or is probably a mistake.

    :param rule: short name of the violated rule; the same rule at other points of the stage is only counted
    :param job: the job
    :param keys: the parameter that causes it, or a path in the stage's section (``start``, ``checkpoint``)
    :param message: what is wrong, without the names of stage and point
    :param hint: what to write instead
    :param warning: whether the sweep can run nevertheless, because the value may be intended
    :param names: parameters of which one causes it: it is placed at the one that is given closest to the job, and at
        ``keys`` if none is
    :param word: the word of ``slurm.options`` that causes it; the lists of profile, spec and stage are collected
    """

    rule: str
    job: Job
    keys: tuple[str, ...]
    message: str
    hint: str
    warning: bool = False
    names: tuple[str, ...] = ()
    word: str = ""


@dataclass
class AlikeFindings:
    """The findings of one rule in one stage: the first one, and the number of points.

    :param point: of the first one's job, empty for a job of the whole sweep
    :param points: the number of points
    :param of_sweep: whether a job of the whole sweep has it
    """

    stage: str
    point: str
    keys: tuple[str, ...]
    message: str
    hint: str
    warning: bool
    points: int
    of_sweep: bool
    names: tuple[str, ...] = ()
    word: str = ""
    partition: str = ""
    trainer: str = ""

    @classmethod
    def of(cls, findings: Sequence[Finding]) -> AlikeFindings:
        """Describe findings of one rule in one stage."""
        first = findings[0]
        points = {finding.job.point for finding in findings}
        return cls(
            *(first.job.stage, first.job.point, first.keys, first.message, first.hint, first.warning),
            points=len(points - {""}),
            of_sweep="" in points,
            names=first.names,
            word=first.word,
            partition=first.job.slurm.partition or "",
            trainer=first.job.trainer,
        )

    def problem(self, sweep: Sweep, profile: ProfilePlaces, stages: int) -> Problem:
        """Return the problem that is reported for them.

        :param profile: places in the profile of the jobs' cluster
        :param stages: the number of other stages with the same findings
        """
        where = f"stage {self.stage}" + (f" at point {self.point}" if self.point else "")
        points = self.points + self.of_sweep - 1
        others = [
            *([f"at {points} more point{'s' if points > 1 else ''}"] if points else []),
            *([f"in {stages} more stage{'s' if stages > 1 else ''}"] if stages else []),
        ]
        more = f"; the same {' and '.join(others)}" if others else ""
        place, in_profile = self.place(sweep, profile)
        document = profile if in_profile else sweep.document
        message, hint = self.message, self.hint
        if self.keys[:1] != ("slurm",):  # options of sbatch are not arguments of Megatron
            message, hint = (sweep.in_its_keys(text, (*self.names, *self.keys)) for text in (message, hint))
        return document.problem(place, f"{where}: {message}{more}", hint)

    def place(self, sweep: Sweep, profile: ProfilePlaces) -> tuple[KeyPath, bool]:
        """Return the place of the value, and whether it is one in the cluster's profile."""
        # imported here, because tasks import this module, but report nothing
        from airflow_megatron.spec.native.sweep import NativeSweep

        in_profile = self._place_in_profile(sweep, profile) if isinstance(sweep, NativeSweep) else None
        return (in_profile, True) if in_profile else (self._place_in_spec(sweep), False)

    def _place_in_profile(self, sweep: NativeSweep, profile: ProfilePlaces) -> KeyPath | None:
        """Return the place in the profile, None if the spec gives the value, or neither does."""
        if len(self.keys) == 2 and self.keys[0] == "slurm":
            section = next((one.stage for one in sweep.tree if one.name == self.stage), self.stage)
            of_stage = _given(sweep, ("stages", section, "slurm"))
            key = self.keys[1]
            if key == "options":
                return profile.of_option(self.partition, self.word) if self.word else None
            if key in of_stage:
                return None
            if "partition" in of_stage and (place := profile.of_partition(self.partition, key)):
                return place
            return None if key in _given(sweep, ("slurm",)) else profile.of_slurm(self.partition, key)
        names = self.names or self.keys
        if any(_names_one(sweep.place_at(self.point, self.stage, name), names) for name in names):
            return None
        places = (profile.of_argument(self.trainer, name) for name in names)
        return next(filter(None, places), None)

    def _place_in_spec(self, sweep: Sweep) -> KeyPath:
        suspected = [sweep.given_at(self.point, self.stage, name) for name in self.names]
        given = [path for path in suspected if path]
        if given:
            return min(given, key=lambda path: _distance(path, sweep.document))
        if len(self.keys) == 1:
            return sweep.place_at(self.point, self.stage, self.keys[0])
        section = next((instance.stage for instance in sweep.tree if instance.name == self.stage), self.stage)
        of_stage: KeyPath = ("stages", section, *self.keys)
        places = sweep.document.positions
        if ("stages",) not in places:  # a file of another tool
            key = self.keys[0 if self.keys[0] in _OF_VARIABLES else -1]
            return sweep.place_at(self.point, self.stage, key)
        candidates = (of_stage, self.keys, of_stage[:3], self.keys[:1])
        return next((path for path in candidates if path in places), ("stages", section))


def _given(sweep: NativeSweep, path: KeyPath) -> frozenset[str]:
    """Return the keys of a section of a spec."""
    value = sweep.document.data
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return frozenset(value) if isinstance(value, dict) else frozenset()


def _names_one(path: KeyPath, names: Sequence[str]) -> bool:
    """Return whether a place is that of one of some parameters, and not what encloses it."""
    return str(path[-1]).rpartition(".")[2] in names


def _distance(path: KeyPath, document: YamlDocument) -> tuple[bool, bool, bool]:
    """Return how far from a job a value is given: for one command or in a file, inherited or not, for all or not."""
    file = document.files.get(path, document.file)
    of_stage = path[0] == "stages" or "." in str(path[-1])
    return not file.startswith(f"{OPTION} "), file in document.sources, not of_stage


RuleInStage: TypeAlias = tuple[str, str, bool]
"""A rule, a stage, and whether the findings are warnings."""


def alike_findings(findings: Iterable[Finding]) -> dict[RuleInStage, AlikeFindings]:
    """Return the findings by rule, stage and severity, in the order of the first ones."""
    alike: dict[RuleInStage, list[Finding]] = {}
    for finding in findings:
        alike.setdefault((finding.rule, finding.job.stage, finding.warning), []).append(finding)
    return {key: AlikeFindings.of(group) for key, group in alike.items()}


def problems_of(
    findings: Iterable[Finding], sweep: Sweep, cluster: ClusterProfile
) -> tuple[list[Problem], list[Problem]]:
    """Return errors and warnings with their positions in the sweep's document or the profile of its cluster."""
    alike = alike_findings(findings).values()
    errors = reported((one for one in alike if not one.warning), sweep, cluster)
    return errors, reported((one for one in alike if one.warning), sweep, cluster)


def reported(findings: Iterable[AlikeFindings], sweep: Sweep, cluster: ClusterProfile) -> list[Problem]:
    """Return the problems; one value that several stages get is reported for the first of them."""
    profile = ProfilePlaces(cluster)
    same: dict[tuple[KeyPath, bool, str, str], list[AlikeFindings]] = {}
    for alike in findings:
        key = (*alike.place(sweep, profile), alike.message, alike.hint)
        same.setdefault(key, []).append(alike)
    return [group[0].problem(sweep, profile, len(group) - 1) for group in same.values()]
