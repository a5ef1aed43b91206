"""Read the specs of a folder, each isolated from the others and within a total time limit.

Each spec is loaded, checked and built in a separate process (:mod:`airflow_megatron.spec.trust.isolation`) unless the
cache has it. First every unknown spec gets a short time. Then those that were cut off get the rest of their time,
within the limit of the folder. The others are read at the next parse, first those that were never read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import DAG, conf

from airflow_megatron.dag_factory.building import build_dags
from airflow_megatron.dag_factory.spec_cache import SpecCache, SpecEntry, digest_of, is_own_code
from airflow_megatron.plan.sweep_owners import owning_file, repeated_name
from airflow_megatron.plan.sweep_plan import check_document, check_expressions
from airflow_megatron.spec.dialects import registry
from airflow_megatron.spec.documents.errors import Problem, SpecError
from airflow_megatron.spec.model.outline import SweepOutline
from airflow_megatron.spec.spec_files import (
    crowded_folders,
    in_turn,
    load_sweep,
    load_sweep_text,
    lone_sidecars,
    misnamed_files,
    spec_files,
)
from airflow_megatron.spec.trust.isolation import Limits, printable, run_isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

FIRST_S: Final = 0.3
"""Initial limit of processor time for each spec, in seconds."""
REST_S: Final = 1.4
"""Additional limit for a spec that was cut off, in seconds."""
ALL_S: Final = 8.0
"""Seconds for all specs of a folder that were cut off or refused."""
MOST_READ: Final = 200
"""Files that may be opened to read a spec; every parse and every task of its sweep compares them."""
MOST_OF_PATHS: Final = 50_000
"""Characters of their paths."""
MAX_MESSAGES: Final = 30_000
"""Characters of all problems of one spec that are shown."""
MAX_PROBLEMS: Final = 50
"""Maximum number of shown problems of one spec."""
MAX_MESSAGE: Final = 1_200
"""Maximum number of shown characters of each problem."""
STAGES_PER_S: Final = 200
"""Stages of all sweeps together for each second that Airflow gives a parse.

Building and storing their DAGs takes half of it, or all of it on a busy machine: then Airflow would drop every sweep.
"""

MOST_NAMED: Final = 5
"""Maximum number of sweeps in the error of one that no longer fits beside them."""

_SMALLEST: Final = "name: smallest\npoint: p\nstages: {train: {kind: train}}\n"


@dataclass(frozen=True)
class SpecFolder:
    """The specs of a folder.

    :param outlines: of the sweeps, in the order of their files
    :param problems: what is wrong with the specs that have none, and sidecars that stand beside no file
    """

    outlines: tuple[SweepOutline, ...]
    problems: tuple[Problem, ...]


def read_spec_folder(folder: Path) -> SpecFolder:
    """Read all specs of a folder and its sub-folders."""
    files = spec_files(folder)
    cache = SpecCache(folder)
    found = {file: entry for file in files if (entry := cache.valid(file)) is not None}
    _read_unknown(folder, [file for file in files if file not in found], found, cache)
    cache.save(files)
    read = sweeps_of_entries([found[file] for file in files], most_stages=stage_budget())
    problems = (*read.problems, *crowded_folders(folder), *lone_sidecars(folder), *misnamed_files(folder))
    return replace(read, problems=problems)


def _read_unknown(
    folder: Path, files: Sequence[Path], found: dict[Path, SpecEntry], cache: SpecCache
) -> None:
    """Add the entries of files that are not in the cache."""
    if not files:
        return
    _warm_up(folder)
    spent = 0.0
    deadline = time.monotonic() + _reading_s()
    known = {file: cache.last(file) for file in files}
    cut_off = [file for file, entry in known.items() if entry and not entry.complete]
    # of one user with many new files, not all come before those of the others
    first = sorted(in_turn(folder, set(files) - set(cut_off)), key=lambda file: known[file] is not None)
    for share, waiting in ((FIRST_S, first), (REST_S, cut_off)):
        for file in waiting:
            left_s = deadline - time.monotonic()
            if spent + share > ALL_S or left_s <= 0:
                found.setdefault(file, _as_before(_deferred(file), known[file]))
                continue
            entry = _read_alone(
                folder, file, Limits(share, clock_s=max(1.0, left_s), idle_s=max(1.0, left_s / 3))
            )
            if entry.outline is None or not entry.complete:
                spent += entry.processor_s
            entry = cache.put(file, entry)
            found[file] = entry if entry.complete else _as_before(entry, known[file])
            if not entry.complete and share == FIRST_S:
                cut_off.append(file)


def _as_before(entry: SpecEntry, before: SpecEntry | None) -> SpecEntry:
    """Return the entry of an incompletely read file with its last sweep, so that its DAGs are kept."""
    return replace(entry, outline=entry.outline or (before.last_good if before else None))


def _warm_up(folder: Path) -> None:
    """Import the modules for reading specs, once for all forked processes."""
    registry.import_all()
    sweep = load_sweep_text(_SMALLEST, str(folder / "smallest.yaml"))
    with contextlib.suppress(SpecError):  # if the folder of clusters lacks the default one
        check_document(sweep)
    # Airflow would otherwise add a DAG that is built here to those of the file
    DAG(sweep.name, auto_register=False)


def _read_alone(folder: Path, file: Path, limits: Limits) -> SpecEntry:
    """Read one spec in a separate process."""
    place = str(file)
    if not place.isprintable():
        shown = place.encode("unicode_escape", "surrogateescape").decode("ascii", "replace")
        hint = "rename it: letters, digits, '_', '-'"
        return SpecEntry(None, (Problem(shown, 0, 0, "the file's name holds unprintable characters", hint),))
    if not file.is_file():
        message = "it is not a regular file" if file.exists() else "no such file"
        return SpecEntry(None, (Problem(place, 0, 0, message, "put a YAML file here, or remove it"),))
    result = run_isolated(lambda report: _report(file, folder, report), limits)
    facts = {kind: value for answer in result.answers for kind, value in answer.items()}
    outline = SweepOutline.from_json(facts["outline"]) if "outline" in facts else None
    problems = tuple(Problem(**one) for one in facts.get("problems", ()))
    reads = facts.get("reads") or {place: digest_of(place)}
    complete = not (result.too_slow or (result.out_of_time and limits.processor_s < REST_S))
    if result.failure and outline is None and not problems:
        what = (
            f"reading it takes more than {FIRST_S + REST_S:g} s of processor time"
            if result.out_of_time
            else ""
        )
        problems = (Problem(place, 0, 0, what or result.failure, "make it smaller" if what else ""),)
    return SpecEntry(None if problems else outline, problems, reads, result.processor_s, complete)


def _shown(text: str) -> str:
    """Return a text for Airflow's list of import errors: a spec may quote millions of characters of itself."""
    text = printable(text[: 2 * MAX_MESSAGE])
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}…"


def _report(file: Path, folder: Path, report: Callable[[Any], None]) -> None:
    """Load, check and build one spec in the separate process, and report the result."""
    opened: dict[str, None] = {str(file): None}
    sys.addaudithook(lambda event, arguments: _note_opened(opened, event, arguments))

    def digests() -> dict[str, str]:
        # a copy: taking digests opens the files again
        return {path: digest_of(path) for path in sorted(_first(opened))}

    try:
        sweep = load_sweep(file)
        check_document(sweep)
        if len(_first(opened)) < len(opened):
            message = (
                f"reading it opens {len(opened)} files, with paths of {sum(map(len, opened)):,} characters"
            )
            hint = f"at most {MOST_READ} files, with {MOST_OF_PATHS:,} characters: every task compares them"
            raise SpecError(Problem(str(file), 1, 1, message, hint))
        outline = SweepOutline.of(sweep, tags=file.relative_to(folder).parts[:-1])
        build_dags(outline)
        report({"outline": outline.to_json(), "reads": digests()})
        check_expressions(sweep)
    except SpecError as error:
        report({"problems": [asdict(problem) for problem in _shown_problems(error)]})
    report({"reads": digests()})


def _first(paths: Iterable[str]) -> list[str]:
    """Return the files that every parse and every task of the sweep may compare: as many as there may be."""
    lengths = itertools.accumulate(len(path) for path in paths)
    return [
        path
        for path, length in itertools.islice(zip(paths, lengths, strict=True), MOST_READ)
        if length <= MOST_OF_PATHS
    ]


def _shown_problems(error: SpecError) -> list[Problem]:
    """Return the first problems of a spec: at most :data:`MAX_PROBLEMS`, and :data:`MAX_MESSAGES` characters."""
    shown: list[Problem] = []
    left = MAX_MESSAGES
    for problem in error.problems[:MAX_PROBLEMS]:
        one = replace(problem, message=_shown(problem.message), hint=_shown(problem.hint))
        left -= len(one.message) + len(one.hint)
        if shown and left < 0:
            break
        shown.append(one)
    return shown


def _note_opened(opened: dict[str, None], event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100
        if not is_own_code(path):
            opened[path] = None


def _deferred(file: Path) -> SpecEntry:
    message = "not read yet: other specs of the folder have taken the time there is"
    return SpecEntry(None, (Problem(str(file), 0, 0, message, "it is read at one of the next parses"),))


def stage_budget() -> int:
    """Return the stages of all sweeps together whose DAGs Airflow can build and store before it ends the parse."""
    return int(STAGES_PER_S * (_whole_s() - _reading_s()))


def _reading_s() -> float:
    """Return the seconds of wall time in which a parse reads specs; the rest is for their DAGs."""
    return min(conf.getfloat("core", "dagbag_import_timeout", fallback=30.0) / 2, 0.3 * _whole_s())


def _whole_s() -> float:
    """Return the seconds of wall time after which Airflow ends the process that parses and stores."""
    return conf.getfloat("dag_processor", "dag_file_processor_timeout", fallback=50.0)


def sweeps_of_entries(entries: Iterable[SpecEntry], *, most_stages: int = 35 * STAGES_PER_S) -> SpecFolder:
    """Return the sweeps; of several with one name, only the owner of the name.

    :param most_stages: maximum number of stages of all sweeps; see :func:`_fitting` for those that are left out
    """
    outlines: dict[str, list[SweepOutline]] = {}
    problems: list[Problem] = []
    found: dict[str, SpecEntry] = {}
    for entry in entries:
        problems += entry.problems
        if entry.outline is not None:
            outlines.setdefault(entry.outline.name, []).append(entry.outline)
            found[entry.outline.file] = entry
    good: list[SweepOutline] = []
    for name, same in outlines.items():
        files = [outline.file for outline in same]
        kept = owning_file(name, files)
        for outline in same:
            if outline.file == kept:
                good.append(outline)
            else:
                message_and_hint = repeated_name(name, outline.file, files, kept)
                problems.append(Problem(outline.file, *outline.place, *message_and_hint))
    kept_files = _fitting([(outline, found[outline.file]) for outline in good], most_stages)
    if len(kept_files) < len(good):
        taken = _shown_weights([one for one in good if one.file in kept_files])
        for outline in good:
            if outline.file not in kept_files:
                message = (
                    f"its {outline.weight:,} stages are too many beside those of {taken}: all sweeps of the folder"
                    f" together have at most {most_stages:,}, and this one is left out"
                )
                hint = "remove specs that are not used, or raise Airflow's dag_file_processor_timeout"
                problems.append(Problem(outline.file, *outline.place, message, hint))
    return SpecFolder(tuple(one for one in good if one.file in kept_files), tuple(problems))


def _fitting(good: Sequence[tuple[SweepOutline, SpecEntry]], most_stages: int) -> set[str]:
    """Return the files whose sweeps have no more stages than that, all together.

    Every sweep is placed by its stages and those of all older sweeps of the same owner. Therefore an owner with many
    stages comes after the others, and of one owner's sweeps the newest are left out.
    """
    of_owner: Counter[int] = Counter()
    places: list[tuple[int, float, SweepOutline]] = []
    for outline, entry in sorted(good, key=lambda one: (one[1].since or one[1].found_at, one[0].file)):
        of_owner[entry.owner] += outline.weight
        places.append((of_owner[entry.owner], entry.since or entry.found_at, outline))
    left, kept = most_stages, set()
    for _, _, outline in sorted(places, key=lambda place: (*place[:2], place[2].file)):
        if outline.weight <= left:
            left -= outline.weight
            kept.add(outline.file)
    return kept


def _shown_weights(outlines: Sequence[SweepOutline]) -> str:
    """Return the sweeps with the most stages, for a message."""
    largest = sorted(outlines, key=lambda one: (-one.weight, one.name))
    shown = ", ".join(f"{one.name} ({one.weight:,})" for one in largest[:MOST_NAMED])
    rest = largest[MOST_NAMED:]
    return shown + (f" and {len(rest):,} more ({sum(one.weight for one in rest):,})" if rest else "")
