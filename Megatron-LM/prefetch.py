#!/usr/bin/env python3
"""Fetch models, tokenizers, data sets, evaluation tasks and files into a cache, for jobs on nodes without internet.

    python prefetch.py --home DIR ITEM…

``DIR`` is the ``HF_HOME`` of the jobs. Each ITEM is a JSON object with ``key``, ``name`` and one kind:

    {"model": REPOSITORY, "revision": …, "files": [PATTERN, …]}      a repository of models
    {"tokenizer": REPOSITORY, "revision": …, "files": [PATTERN, …]}  the same; also loaded once
    {"dataset": REPOSITORY, "config": …, "revision": …}              a data set, as ``datasets`` loads it
    {"task": NAME}                                                   the data of a task of lm-evaluation-harness
    {"url": ADDRESS, "file": NAME, "sha256": …}                      one file, ``DIR/files/NAME``

When an item is complete, ``DIR/prefetched/KEY`` records its files, one line with size and path for each. Items whose
files match their record are skipped, which needs no internet. Exit status 1: an item could not be fetched; the others
were.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
import urllib.parse
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.atomic_output import umask, write_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_CACHES = ("HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_MODULES_CACHE", "HUGGINGFACE_HUB_CACHE")
"""Jobs look below ``HF_HOME``."""
_CHUNK = 1 << 20
_SILENT_S = 60


class FetchError(Exception):
    """An item cannot be fetched; the message has the reason."""


def wrong_files(home: Path, key: str) -> list[Path] | None:
    """Return the files of an item that are missing or have another size; None if it has no record.

    :param home: the cache.
    :param key: key of the item.
    """
    try:
        lines = (home / "prefetched" / key).read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    sizes = (line.split("\t", 1) for line in lines)
    return [home / path for size, path in sizes if not _has_size(home / path, int(size))]


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def forget(home: Path, files: Iterable[Path]) -> None:
    """Delete damaged files, because the libraries assume that an existing file is complete and do not fetch it again.

    :param home: the cache.
    :param files: paths relative to the cache.
    """
    for file in files:
        if file.is_relative_to(home / "datasets"):
            shutil.rmtree(
                file.parent, ignore_errors=True
            )  # the tables of one data set, which are created together
        else:
            file.resolve().unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def record(home: Path, key: str, files: Iterable[Path]) -> None:
    """Write the record of a complete item.

    :param home: the cache.
    :param key: key of the item.
    :param files: its files, relative to the cache.
    """
    paths = sorted({file for file in files if file.is_file()})
    if not paths:
        raise FetchError("it has no files")
    lines = [f"{path.stat().st_size}\t{path.relative_to(home)}\n" for path in paths]
    write_text(home / "prefetched" / key, "".join(lines))


def fetch(home: Path, item: dict[str, Any]) -> list[Path]:
    """Fetch one item; return its files.

    :param home: the cache.
    :param item: the item of the command line.
    :raises FetchError: if the content of a file does not match the item.
    """
    if "model" in item:
        return _model_files(home, item["model"], item)
    if "tokenizer" in item:
        return _tokenizer_files(home, item)
    if "dataset" in item:
        datasets = import_module("datasets")
        return _files_of(
            datasets.load_dataset(item["dataset"], item.get("config"), revision=item.get("revision"))
        )
    if "task" in item:
        return _task_files(item["task"])
    return [_file(home, item)]


def _tokenizer_files(home: Path, item: dict[str, Any]) -> list[Path]:
    """Fetch a tokenizer and load it, so that the library records in the cache which files the repository does not have.

    Without this record it reports them as missing when it is offline. A failure to load matters only to the job.
    """
    name = item["tokenizer"]
    files = _model_files(home, name, item)
    try:
        import_module("transformers").AutoTokenizer.from_pretrained(name, revision=item.get("revision"))
    except Exception as error:
        print(f"{item['name']}: cannot be loaded here: {_first_line(error)}", flush=True)
    snapshot = next(file for file in files if file.parent.parent.name == "snapshots").parent
    return [*files, *(snapshot.parents[1] / ".no_exist" / snapshot.name).rglob("*")]


def _model_files(home: Path, name: str, item: dict[str, Any]) -> list[Path]:
    """Fetch a repository of models; return its files after a comparison of their sizes with the hub."""
    hub = import_module("huggingface_hub")
    revision, patterns = item.get("revision"), item.get("files")
    # if the hub does not respond, the library would use the files that it has
    siblings = hub.HfApi().repo_info(name, revision=revision, files_metadata=True).siblings or []
    sizes = {file.rfilename: file.size for file in siblings}
    wanted = set(import_module("huggingface_hub.utils").filter_repo_objects(sizes, allow_patterns=patterns))
    for _ in range(2):
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=patterns))
        wrong = [
            folder / file
            for file in wanted
            if not (folder / file).is_file() or sizes[file] not in (None, (folder / file).stat().st_size)
        ]
        if not wrong:
            return [*(folder / file for file in wanted), *_references(folder)]
        forget(home, wrong)
    raise FetchError(f"{wrong[0].name} has another size than the hub says")


def _references(snapshot: Path) -> Iterable[Path]:
    """Return the reference files of a snapshot in the hub's cache; its branch is not found offline without them."""
    references = snapshot.parents[1] / "refs"
    return (file for file in references.rglob("*") if file.is_file() and file.read_text() == snapshot.name)


def _files_of(dataset: Any) -> list[Path]:
    """Return the files of a loaded data set: all files in the folders of its tables."""
    parts = dataset.values() if hasattr(dataset, "values") else [dataset]
    folders = {Path(file["filename"]).parent for part in parts for file in part.cache_files}
    return [file for folder in folders for file in folder.iterdir() if not file.name.endswith(".lock")]


def _task_files(name: str) -> list[Path]:
    tasks = import_module("lm_eval.tasks")
    manager = tasks.TaskManager()
    if name not in manager.all_tasks:
        raise FetchError("lm-evaluation-harness has no such task")
    loaded = manager.load([name])["tasks"].values()  # a group has several tasks
    return [file for task in loaded for file in _files_of(task.dataset)]


def _file(home: Path, item: dict[str, Any]) -> Path:
    address, path = item["url"], home / "files" / item["file"]
    if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
        raise FetchError("only http and https addresses are fetched")
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary, digest = Path(name), hashlib.sha256()
    try:
        with (
            os.fdopen(descriptor, "wb") as stream,
            urllib.request.urlopen(address, timeout=_SILENT_S) as answer,
        ):
            while block := answer.read(_CHUNK):
                stream.write(block)
                digest.update(block)
            expected = answer.headers.get("Content-Length")
            if expected is not None and int(expected) != stream.tell():
                raise FetchError(f"{stream.tell()} of {expected} bytes arrived")
        if item.get("sha256") not in (None, digest.hexdigest()):
            raise FetchError(f"its SHA-256 is {digest.hexdigest()}, not {item['sha256']}")
        temporary.chmod(0o666 & ~umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def fetch_all(home: Path, items: Sequence[dict[str, Any]]) -> int:
    """Fetch the missing items and report each item; return the exit status.

    :param home: the cache.
    :param items: the items of the command line.
    """
    failed = 0
    for item in items:
        key, name = item["key"], item["name"]
        wrong = wrong_files(home, key)
        if wrong == []:
            print(f"{name}: in place", flush=True)
            continue
        try:
            forget(home, wrong or ())
            record(home, key, fetch(home, item))
        except Exception as error:
            print(f"prefetch.py: error: {name}: {_first_line(error)}", file=sys.stderr, flush=True)
            failed += 1
        else:
            print(f"{name}: fetched", flush=True)
    if failed:
        print(f"prefetch.py: error: {failed} of {len(items)} items are missing in {home}", file=sys.stderr)
    return 1 if failed else 0


def main(words: Sequence[str]) -> int:
    """Run the program and return its exit status.

    :param words: the arguments, without this program's name.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False)
    parser.add_argument("--home", type=Path, required=True, help="the cache, HF_HOME of the jobs")
    parser.add_argument("items", nargs="+", type=json.loads, metavar="ITEM", help="an item to fetch, as JSON")
    args = parser.parse_args(words)
    home = args.home.absolute()
    home.mkdir(parents=True, exist_ok=True)
    for name in (*_OFFLINE, *_CACHES):
        os.environ.pop(name, None)
    os.environ.update(HF_HOME=str(home), HF_HUB_DISABLE_PROGRESS_BARS="1")
    return fetch_all(home, args.items)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
