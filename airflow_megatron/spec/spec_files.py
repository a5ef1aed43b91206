"""Loading of spec files in all supported formats."""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from airflow_megatron.spec.dialects.recognition import likely_meant
from airflow_megatron.spec.dialects.registry import dialect_sweep
from airflow_megatron.spec.documents.errors import Problem, SpecError, begin_hints, near_names, suggestion
from airflow_megatron.spec.documents.yaml_document import YAML_ENDINGS, load_yaml_file, load_yaml_text
from airflow_megatron.spec.expressions.bounds import begin_spec
from airflow_megatron.spec.foreign.sidecar import NO_SPEC, is_sidecar, refuse_sidecar, sidecar_owners
from airflow_megatron.spec.model.dag_names import name_problems
from airflow_megatron.spec.model.schema import SweepSpecSection, validate
from airflow_megatron.spec.native.extension import extended
from airflow_megatron.spec.native.overrides import overridden
from airflow_megatron.spec.native.sweep import NativeSweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from airflow_megatron.spec.documents.yaml_document import YamlDocument
    from airflow_megatron.spec.model.sweep import Sweep

    _OwnedFiles: TypeAlias = dict[tuple[str, int], list[Path]]

PRESETS: Final = "presets"
"""Folder of the presets that specs extend; they are not sweeps."""
MOST_COMPARED: Final = 500
"""Maximum number of names that are compared with those of lone sidecars: every parse of a folder compares them."""
MOST_FILES: Final = 5_000
"""Maximum number of YAML files that one user has in one sub-folder of the folder of specs."""
MOST_FILES_IN_ALL: Final = 20_000
MOST_LISTED: Final = 200_000
"""Maximum number of files and folders of any name below one sub-folder."""
_LONGEST_COMPARED: Final = 40
_MISNAMED: Final = re.compile(r"(?P<stem>.+?)\.ya?ml(?:\.txt)?", re.IGNORECASE)
"""Names that editors of other systems give to a spec."""


def load_sweep(path: Path | str, settings: Iterable[str] = ()) -> Sweep:
    """Load and check a sweep spec file.

    :param settings: ``key=value`` each, for values of the file; see :mod:`airflow_megatron.spec.native.overrides`
    :raises SpecError: with every problem found
    """
    return _sweep(load_yaml_file(path), settings)


def load_sweep_text(text: str, file: str, sources: Mapping[str, str] | None = None) -> Sweep:
    """Load and check a sweep spec given as text.

    :param file: its path for messages; paths of other files are relative to its folder
    :param sources: path → content of included files, instead of their current content
    """
    document = load_yaml_text(text, file)
    document.sources.update(sources or {})
    return _sweep(document)


def _sweep(document: YamlDocument, settings: Iterable[str] = ()) -> Sweep:
    if is_sidecar(Path(document.file)):
        raise SpecError(document.problem((), *NO_SPEC))
    begin_spec()
    begin_hints()
    document, settings = extended(document), list(settings)
    sweep = dialect_sweep(document, settings)
    if sweep is None:
        refuse_sidecar(document)
        document = overridden(document, settings)
        sweep = NativeSweep(_native_section(document), document)
    if problems := list(name_problems(sweep)):
        raise SpecError(problems)
    return sweep


def _native_section(document: YamlDocument) -> SweepSpecSection:
    try:
        return validate(SweepSpecSection, document)
    except SpecError as error:
        if meant := likely_meant(document):
            raise SpecError(meant) from error
        raise


def spec_files(directory: Path) -> list[Path]:
    """Return the spec files in a folder and its sub-folders, sorted; those of the folder itself come first.

    Hidden files and folders (an editor's drafts, ``.git``), folders called ``presets`` and sidecars of other specs are
    ignored; links to folders are not followed.
    """
    return [path for path in _yaml_files(directory) if not is_sidecar(path)]


def lone_sidecars(directory: Path) -> list[Problem]:
    """Return a problem for each sidecar in a folder and its sub-folders that stands beside no file."""
    files = _yaml_files(directory)
    specs: dict[Path, dict[str, str]] = defaultdict(dict)
    for path in files:
        if not is_sidecar(path):
            specs[path.parent][path.name] = path.stem
    problems = []
    left = MOST_COMPARED
    for path in filter(is_sidecar, files):
        others, owners = specs[path.parent], sidecar_owners(path)
        if not others.keys().isdisjoint(owners):
            continue
        stem, near = Path(owners[0]).stem, ""
        if len(others) <= left and len(stem) <= _LONGEST_COMPARED:
            left -= len(others)
            names = {other: name for name, other in others.items()}
            near = suggestion(repr(names[one]) for one in near_names(stem, names, limit=1))
        message = f"it is the sidecar of {owners[0]}, which does not exist"
        problems.append(Problem(str(path), 0, 0, message, near or "rename it after its file"))
    return problems


def misnamed_files(directory: Path) -> list[Problem]:
    """Return a problem for each file in a folder and its sub-folders whose name only resembles that of a spec."""
    problems = []
    for path in _files(directory, lambda name: _MISNAMED.fullmatch(name) is not None):
        found = _MISNAMED.fullmatch(path.name)
        if found is not None and not path.name.endswith(YAML_ENDINGS):
            hint = f"rename it to {found['stem']}.yaml"
            problems.append(
                Problem(str(path), 0, 0, "it is not read, because specs end in .yaml or .yml", hint)
            )
    return problems


def crowded_folders(directory: Path) -> list[Problem]:
    """Return a problem for each user and sub-folder whose YAML files are too many; none of them is read."""
    problems = []
    for (place, _), paths in _crowded(_owned_files(directory, _is_yaml)).items():
        message = f"it holds {len(paths):,} YAML files of one user, and none of them is read"
        if not paths:
            message = f"it holds more than {MOST_LISTED:,} files, and none of them is read"
        hint = f"at most {MOST_FILES:,}: remove those that are no specs"
        problems.append(Problem(str(directory / place), 0, 0, message, hint))
    return problems


def in_turn(directory: Path, files: Iterable[Path]) -> list[Path]:
    """Return files so that no user, and no sub-folder, comes twice before each other one that has files came once."""
    taken: Counter[tuple[str, int]] = Counter()
    places: list[tuple[int, Path]] = []
    for path in sorted(files):
        try:
            owner = path.lstat().st_uid
        except OSError:
            owner = -1
        group = (_sub_folder(directory, path), owner)
        places.append((taken[group], path))
        taken[group] += 1
    return [path for _, path in sorted(places)]


def _sub_folder(directory: Path, path: Path) -> str:
    """Return the name of the sub-folder of *directory* that contains a file; empty for the folder itself."""
    parts = path.relative_to(directory).parts
    return parts[0] if len(parts) > 1 else ""


def _is_yaml(name: str) -> bool:
    return name.endswith(YAML_ENDINGS)


def _yaml_files(directory: Path) -> list[Path]:
    return _files(directory, _is_yaml)


def _files(directory: Path, wanted: Callable[[str], bool]) -> list[Path]:
    groups = _owned_files(directory, wanted)
    crowded = _crowded(groups)
    found = [path for group, paths in groups.items() if group not in crowded for path in paths]
    return sorted(found, key=lambda path: (len(path.parts), path))


def _crowded(groups: _OwnedFiles) -> _OwnedFiles:
    """Return the groups that are too large; of all together, the largest."""
    kept, crowded = 0, {}
    for group, paths in sorted(groups.items(), key=lambda one: (len(one[1]), one[0])):
        kept += len(paths)
        if not paths or len(paths) > MOST_FILES or kept > MOST_FILES_IN_ALL:
            crowded[group] = paths
    return crowded


def _owned_files(directory: Path, wanted: Callable[[str], bool]) -> _OwnedFiles:
    """Return the files with a wanted name, by sub-folder and owner; one empty list for a folder with too many."""
    groups: _OwnedFiles = defaultdict(list)
    subfolders: list[str] = []
    for entry in _entries(directory):
        if _is_folder(entry):
            subfolders.append(entry.name)
        elif wanted(entry.name):
            groups["", _owner(entry)].append(Path(entry.path))
    for name in subfolders:
        of_folder: _OwnedFiles = defaultdict(list)
        waiting, listed = [directory / name], 0
        while waiting and listed <= MOST_LISTED:
            for entry in _entries(waiting.pop()):
                listed += 1
                if listed > MOST_LISTED:
                    break
                if _is_folder(entry):
                    waiting.append(Path(entry.path))
                elif wanted(entry.name):
                    of_folder[name, _owner(entry)].append(Path(entry.path))
        groups.update(of_folder if listed <= MOST_LISTED else {(name, -1): []})
    return groups


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what a folder holds, without hidden entries, presets and links to folders."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if not entry.is_dir() or (entry.name != PRESETS and not entry.is_symlink()):
                    yield entry
    except OSError:
        return


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _owner(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1
