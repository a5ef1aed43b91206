"""Read the specs of a folder, each isolated from the others and within a total time limit.

Each spec is loaded, checked and built in a process of its own (:mod:`airflow_megatron.spec.trust.isolation`)
unless the cache
knows it. First every spec that is unknown gets a short while, then those that were cut off get the rest of their
time, as far as the folder's allowance goes; what is left over is read at the next parse, specs never looked at first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
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
from airflow_megatron.spec.spec_files import load_sweep, load_sweep_text, spec_files
from airflow_megatron.spec.trust.isolation import Limits, printable, run_isolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

FIRST_S: Final = 0.3
"""Seconds of processor time that each spec gets at first."""
REST_S: Final = 1.4
"""Seconds that a spec gets which was cut off."""
ALL_S: Final = 8.0
"""Seconds for all specs of a folder that were cut off or refused."""
STAGES_PER_S: Final = 500
"""Stages of all sweeps together for each second that Airflow gives a parse; building the DAGs takes a third of it."""


_SMALLEST: Final = "name: smallest\npoint: p\nstages: {train: {kind: train}}\n"


@dataclass(frozen=True)
class SpecFolder:
    """The specs of a folder.

    :param outlines: of the sweeps, in the order of their files
    :param problems: what is wrong with the specs that have none
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
    return sweeps_of_entries([found[file] for file in files], most_stages=_most_stages())


def _read_unknown(
    folder: Path, files: Sequence[Path], found: dict[Path, SpecEntry], cache: SpecCache
) -> None:
    """Add the entries of files that are not in the cache."""
    if not files:
        return
    _warm_up(folder)
    spent = 0.0
    deadline = time.monotonic() + conf.getfloat("core", "dagbag_import_timeout", fallback=30.0) / 2
    known = {file: cache.last(file) for file in files}
    cut_off = [file for file, entry in known.items() if entry and not entry.complete]
    first = sorted(set(files) - set(cut_off), key=lambda file: (known[file] is not None, file))
    for share, waiting in ((FIRST_S, first), (REST_S, cut_off)):
        for file in waiting:
            left_s = deadline - time.monotonic()
            if spent + share > ALL_S or left_s <= 0:
                found.setdefault(file, _as_before(_deferred(file), known[file]))
                continue
            entry = _read_alone(folder, file, Limits(share, clock_s=max(1.0, left_s / 3)))
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
    """Import the modules that reading a spec needs, once for all forked processes."""
    registry.import_all()
    sweep = load_sweep_text(_SMALLEST, str(folder / "smallest.yaml"))
    with contextlib.suppress(SpecError):  # where the folder of clusters lacks the default one
        check_document(sweep)
    # Airflow would treat a DAG that is built here as one of the folder
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
    opened: set[str] = {str(file)}
    sys.addaudithook(lambda event, arguments: _note_opened(opened, event, arguments))

    def digests() -> dict[str, str]:
        # a copy: taking digests opens the files again
        return {path: digest_of(path) for path in sorted(opened.copy())}

    try:
        sweep = load_sweep(file)
        check_document(sweep)
        outline = SweepOutline.of(sweep, tags=file.relative_to(folder).parts[:-1])
        build_dags(outline)
        report({"outline": outline.to_json(), "reads": digests()})
        check_expressions(sweep)
    except SpecError as error:
        shown = (
            replace(one, message=_shown(one.message), hint=_shown(one.hint))
            for one in error.problems[:MAX_PROBLEMS]
        )
        report({"problems": [asdict(problem) for problem in shown]})
    report({"reads": digests()})


MAX_PROBLEMS: Final = 50
"""Problems of one spec that are shown."""
MAX_MESSAGE: Final = 1_200
"""Characters of each that are shown."""


def _note_opened(opened: set[str], event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100
        if not is_own_code(path):
            opened.add(path)


def _deferred(file: Path) -> SpecEntry:
    message = "not read yet: other specs of the folder have taken the time there is"
    return SpecEntry(None, (Problem(str(file), 0, 0, message, "it is read at one of the next parses"),))


def _most_stages() -> int:
    """Return the stages of all sweeps together whose DAGs can be built before Airflow ends the parse."""
    return int(STAGES_PER_S * conf.getfloat("core", "dagbag_import_timeout", fallback=30.0))


def sweeps_of_entries(entries: Iterable[SpecEntry], *, most_stages: int = 30 * STAGES_PER_S) -> SpecFolder:
    """Return the sweeps; of several with one name, only the owner of the name.

    :param most_stages: of all sweeps together; those whose specs were read last are left out
    """
    outlines: dict[str, list[SweepOutline]] = {}
    problems: list[Problem] = []
    read_at: dict[str, float] = {}
    for entry in entries:
        problems += entry.problems
        if entry.outline is not None:
            outlines.setdefault(entry.outline.name, []).append(entry.outline)
            read_at[entry.outline.file] = entry.found_at
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
    left, kept_files = most_stages, set()
    for outline in sorted(good, key=lambda one: read_at[one.file]):
        if len(outline.tree) <= left:
            left -= len(outline.tree)
            kept_files.add(outline.file)
    for outline in good:
        if outline.file not in kept_files:
            message = f"the other sweeps of the folder have {most_stages:,} stages, or as good as: this one is left out"
            hint = "remove specs that are not used, or raise Airflow's dagbag_import_timeout"
            problems.append(Problem(outline.file, *outline.place, message, hint))
    return SpecFolder(tuple(one for one in good if one.file in kept_files), tuple(problems))
