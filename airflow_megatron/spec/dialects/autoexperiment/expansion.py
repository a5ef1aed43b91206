"""The jobs of AutoExperiment documents: the product of the axes, with every text resolved."""

from __future__ import annotations

import itertools
import operator
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_megatron.spec.dialects.autoexperiment.grammar import document_axes
from airflow_megatron.spec.dialects.autoexperiment.resolution import (
    EndlessError,
    RefusedValueError,
    ResolutionPlan,
    names_read,
    settle,
)
from airflow_megatron.spec.dialects.autoexperiment.unread import OWN_KEYS, near_key
from airflow_megatron.spec.dialects.recognition import AUTOEXPERIMENT_KEYS
from airflow_megatron.spec.documents.errors import SpecError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_megatron.spec.dialects.autoexperiment.grammar import Axis, Choice
    from airflow_megatron.spec.documents.errors import Problem
    from airflow_megatron.spec.documents.yaml_document import KeyPath, YamlDocument

_REQUIRED = frozenset(AUTOEXPERIMENT_KEYS)
_MAX_PLANS = 1_000
_MAX_REPEATED = 20
_MAX_SETTLED = 30_000
_OF_PULL_REQUEST = ("autoexp", "args")
"""Sections of AutoExperiment's pull request 11."""


@dataclass(frozen=True)
class ExpandedJob:
    """One job.

    :param params: its values
    :param choices: the items that it takes, in document order
    """

    params: Mapping[str, Any]
    choices: tuple[Choice, ...]

    def place_of(self, key: str, document: YamlDocument) -> KeyPath:
        """Return the place of the value that the job gets for a key: the last one in the items that it takes."""
        taken = {(*choice.place, choice.index) for choice in self.choices}
        places = (
            path
            for path in document.positions
            if path
            and path[-1] == key
            and all(path[:end] in taken for end in range(1, len(path) + 1) if isinstance(path[end - 1], int))
        )
        return next(iter(deque(places, maxlen=1)), ())


@dataclass(frozen=True)
class Expansion:
    """The jobs of a document.

    :param jobs: in the tool's order
    :param unresolved: for each key whose text stays unresolved, at how many jobs, and why at the first
    """

    jobs: tuple[ExpandedJob, ...]
    unresolved: Mapping[str, tuple[int, str]]


def expand_document(document: YamlDocument, axes: Sequence[Axis] | None = None) -> Expansion:
    """Return the jobs of a document that :func:`.references.load_autoexperiment_yaml` has read.

    :param axes: the document's axes, where they are known already
    :raises SpecError: on values that the grammar has no place for, on texts that never settle or would run code, on
        missing job fields, on repeated names, and when there is no job
    """
    return _Expander(document).expand(document_axes(document) if axes is None else axes)


class _Expander:
    """Expands one document."""

    def __init__(self, document: YamlDocument) -> None:
        self.document = document
        self.unresolved: dict[str, tuple[int, str]] = {}
        self.names: dict[str, ExpandedJob] = {}
        self.repeated: dict[str, ExpandedJob] = {}

    def expand(self, axes: Sequence[Axis]) -> Expansion:
        sizes = [len(axis.flats) for axis in axes]
        plans: dict[tuple[int, ...], ResolutionPlan] = {}
        used: Counter[tuple[int, ...]] = Counter()
        jobs: list[ExpandedJob] = []
        settled = 0
        middle = _middle(sizes)
        for head, tail in itertools.product(_combinations(axes[:middle]), _combinations(axes[middle:])):
            params = {**head.flat, **tail.flat}
            picks = head.picks + tail.picks
            shape = head.shape + tail.shape
            plan = plans.get(shape)
            if plan is None and len(plans) < _MAX_PLANS:
                owners = {
                    key: number
                    for number, (axis, pick) in enumerate(zip(axes, picks, strict=True))
                    for key in axis.flats[pick]
                }
                plan = plans[shape] = ResolutionPlan(params, owners, sizes)
            if plan and plan.resolve(params, picks):
                used[shape] += 1
            else:
                params = {**head.flat, **tail.flat}
                settled += 1
                if settled > _MAX_SETTLED:
                    raise SpecError(
                        self.document.problem(
                            (),
                            f"more than {_MAX_SETTLED:,} jobs whose texts refer to each other in no order",
                            "split the file, or write '{{' and '}}' in the script template instead",
                        )
                    )
                self._settle(params)
            job = ExpandedJob(params, head.choices + tail.choices)
            if not params.keys() >= _REQUIRED:
                raise SpecError(self._missing_fields(job))
            jobs.append(job)
            if self._repeated(job) > _MAX_REPEATED:
                break
        for shape, count in used.items():
            for key, reason in plans[shape].unresolved.items():
                self._note_unresolved(key, reason, count)
        self._check_names()
        return Expansion(tuple(jobs), self.unresolved)

    def _settle(self, params: dict[str, Any]) -> None:
        try:
            for key, reason in settle(params).items():
                self._note_unresolved(key, reason, 1)
        except EndlessError as error:
            raise SpecError(
                [
                    self.document.problem(self.document.last_place(key), str(error), "use another key")
                    for key in error.keys
                ]
            ) from error
        except RefusedValueError as error:
            raise SpecError(
                self.document.problem(
                    self.document.last_place(error.key), f"{error.key}: {error.cause}", error.cause.hint
                )
            ) from error

    def _note_unresolved(self, key: str, reason: str, count: int) -> None:
        before, first = self.unresolved.get(key, (0, reason))
        self.unresolved[key] = (before + count, first)

    def _missing_fields(self, job: ExpandedJob) -> Problem:
        missing = [key for key in AUTOEXPERIMENT_KEYS if key not in job.params]
        taken = ", ".join(f"{choice.place[-1]} {choice.label}" for choice in job.choices if choice.named)
        where = f" at {taken}" if taken else ""
        message = f"{', '.join(missing)} missing{where}"
        data = self.document.data
        if isinstance(data, dict) and all(isinstance(data.get(key), dict) for key in _OF_PULL_REQUEST):
            return self.document.problem(
                (_OF_PULL_REQUEST[0],),
                f"{message}; {' and '.join(_OF_PULL_REQUEST)} are sections of a version of AutoExperiment that was"
                " never released, which is not read",
                "write a native spec; its section megatron takes the keys of args",
            )
        for key in sorted(job.params.keys() - {*OWN_KEYS}):
            if near := near_key(key, missing, 0.75):
                return self.document.problem(
                    self.document.last_place(key), f"{message}; there is {key!r}", near
                )
        return self.document.problem((), message, f"every job needs {', '.join(AUTOEXPERIMENT_KEYS)}")

    def _repeated(self, job: ExpandedJob) -> int:
        """Count the name of a job; return the number of repeated names so far."""
        name = str(job.params["name"])
        if name in self.names:
            self.repeated.setdefault(name, job)
        else:
            self.names[name] = job
        return len(self.repeated)

    def _check_names(self) -> None:
        if self.repeated:
            if "name" in self.unresolved and "{" in next(iter(self.repeated)):
                raise SpecError(self._unresolved_name())
            shown = ", ".join(repr(name) for name in itertools.islice(self.repeated, 5))
            more = " …" if len(self.repeated) > 5 else ""
            message = f"job names must be unique; given more than once: {shown}{more}"
            raise SpecError(self.document.problem(*self._missing_in_name(message)))

    def _unresolved_name(self) -> Problem:
        """Return why the text of ``name`` stays unresolved, which makes names equal."""
        params, key, seen = next(iter(self.repeated.values())).params, "name", {"name"}
        while following := next(
            (
                name
                for name in names_read(str(params[key]))
                # a key that stays unresolved at another job may not be there at this one
                if name in self.unresolved and name in params and name not in seen
            ),
            None,
        ):
            key = following
            seen.add(key)
        text = str(params[key])
        missing = next((name for name in names_read(text) if name not in params), "")
        hint = did_you_mean(missing, params) or f"give {missing} a value" if missing else "correct its value"
        why = f"there is no key {missing!r}" if missing else self.unresolved[key][1]
        message = f"{key} stays {text!r}, so jobs have the same name: {why}"
        return self.document.problem(self.document.last_place(key), message, hint)

    def _missing_in_name(self, message: str) -> tuple[KeyPath, str, str]:
        """Return a message with its place and a hint that gives the first two jobs with one name different names."""
        at_name = self.document.last_place("name"), message
        name, second = next(iter(self.repeated.items()))
        chosen = [{choice.place: choice for choice in job.choices} for job in (self.names[name], second)]
        differing = [
            str(place[-1])
            for place in chosen[0].keys() | chosen[1].keys()
            if place and chosen[0].get(place) != chosen[1].get(place)
        ]
        if differing and self.names[name].params == second.params:
            return *at_name, f"{self._equal_items(chosen)}; remove one"
        for place, one in chosen[0].items():
            other = chosen[1].get(place)
            if other and one.named and one.label == other.label and one.index != other.index:
                items = f"items {one.index + 1} and {other.index + 1} of {place[-1] if place else 'the file'}"
                hint = f"{items} have the same name, {one.label!r}: rename one"
                return (*place, other.index, other.label), message, hint
        keys = " and ".join(f"{{{key}}}" for key in sorted(set(differing)))
        return *at_name, f"add {keys}, which varies, to name" if keys else "use every key that varies in name"

    @staticmethod
    def _equal_items(chosen: Sequence[Mapping[KeyPath, Choice]]) -> str:
        """Return which items of which lists make two jobs with the same values."""
        first, second = chosen
        lists = [
            f"items {first[place].index + 1} and {second[place].index + 1} of {place[-1]}"
            for place in first
            if place in second and first[place] != second[place]
        ]
        return f"{', '.join(lists) or 'two items'} give all keys the same values"


class _Combination(NamedTuple):
    """One alternative of each of several consecutive axes, merged.

    :param picks: the number of each alternative
    :param flat: their values; later axes replace earlier ones
    :param shape: the shape of each alternative
    :param choices: the items taken
    """

    picks: tuple[int, ...]
    flat: dict[str, Any]
    shape: tuple[int, ...]
    choices: tuple[Choice, ...]


def _combinations(axes: Sequence[Axis]) -> list[_Combination]:
    made = [_Combination((), {}, (), ())]
    for axis in axes:
        made = [
            _Combination(
                (*before.picks, pick),
                {**before.flat, **flat} if before.flat else flat,
                (*before.shape, shape),
                before.choices + choices,
            )
            for before in made
            for pick, (flat, shape, choices) in enumerate(
                zip(axis.flats, axis.shapes, axis.choices, strict=True)
            )
        ]
    return made


def _middle(sizes: Sequence[int]) -> int:
    """Return where axes are divided, so that both parts have few combinations."""
    products = list(itertools.accumulate(sizes, operator.mul, initial=1))
    return min(range(len(products)), key=lambda index: products[index] + products[-1] // products[index])
