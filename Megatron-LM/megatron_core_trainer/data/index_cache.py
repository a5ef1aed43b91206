"""One index cache for several trainings: one training builds each index, and an index is either complete or absent.

megatron-core assumes that an existing index file is complete, but writes it in place. :func:`share` changes three
things in this process:

- An index file is renamed to its final name when it is complete. A builder that is killed leaves no file of that name.
- Rank 0 builds or loads each index under a lock, so the other trainings wait for it and then load it. The lock only
  saves time: if locks do not work between nodes, or the owner has disappeared, an index is built twice with the same
  content.
- The name of an index also depends on the sizes of its data set, so data that is prepared again gets a new index.

The lock is ``flock(2)``: the kernel releases it when its owner ends in any way. A file server may keep the lock of a
node that crashed. The owner therefore touches the file every :data:`HEARTBEAT_S`, and others wait at most
:data:`EXPIRY_S` for an owner that does not. That is less than the ten minutes that the other ranks wait for rank 0.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatron_core_trainer.atomic_output import umask
from megatron_core_trainer.data.work_claims import Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HEARTBEAT_S = 10.0
EXPIRY_S = 180.0
_POLL_S = 0.25
_SILENT_S = 2.0
#: Module, class and method of megatron-core that builds or loads the files of one index.
_BUILDERS = (
    ("gpt_dataset", "GPTDataset", "_build_document_sample_shuffle_indices"),
    ("masked_dataset", "MaskedWordPieceDataset", "_build_sample_index"),
    ("blended_dataset", "BlendedDataset", "_build_indices"),
)
_SHARED: set[str] = set()


def share(cache: str) -> None:
    """Let this process share a folder of indices with other trainings. Call it before data sets are built.

    :param cache: the folder, as ``--data-cache-path`` names it.
    """
    if cache in _SHARED:
        return
    _SHARED.add(cache)
    numpy = import_module("numpy")
    numpy.save = _saving_whole(numpy.save, Path(cache))
    for module, name, method in _BUILDERS:
        try:
            kind = getattr(import_module(f"megatron.core.datasets.{module}"), name)
            setattr(kind, method, _one_at_a_time(getattr(kind, method), cache))
        except (
            ImportError,
            AttributeError,
        ):  # a release without this method, whose files are complete anyway
            continue


def _saving_whole(save: Callable[..., None], cache: Path) -> Callable[..., None]:
    """Return a ``numpy.save`` that renames files of the cache to their final name when they are complete."""
    mode = 0o666 & ~umask()  # read once, because data sets are built in threads

    @functools.wraps(save)
    def save_whole(file: Any, *words: Any, **settings: Any) -> None:
        if not isinstance(file, (str, os.PathLike)) or Path(file).parent != cache:
            save(file, *words, **settings)
            return
        path = Path(file)
        path = path if path.name.endswith(".npy") else path.with_name(f"{path.name}.npy")
        while not _named_when_complete(path, mode, lambda stream: save(stream, *words, **settings)):
            pass

    return save_whole


def _named_when_complete(path: Path, mode: int, write: Callable[[Any], None]) -> bool:
    """Write a file unless it exists; return False if another builder removed the temporary file as abandoned."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        try:
            os.link(temporary, path)  # never overwrites a file that others read
        except FileExistsError:
            return True
        except FileNotFoundError:
            return False
        except OSError:  # the file system has no hard links
            temporary.replace(path)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _one_at_a_time(build: Callable[..., Any], cache: str) -> Callable[..., Any]:
    """Wrap a builder's method so that it runs under the lock of its index."""

    @functools.wraps(build)
    def built(dataset: Any, *words: Any, **settings: Any) -> Any:
        if dataset.config.path_to_cache != cache:
            return build(dataset, *words, **settings)
        _name_by_data(dataset)
        if not _builds():
            return build(dataset, *words, **settings)
        with _locked(Path(cache), dataset.unique_description_hash):
            return build(dataset, *words, **settings)

    return built


def _builds() -> bool:
    distributed = import_module("torch").distributed
    return not distributed.is_initialized() or distributed.get_rank() == 0


def _name_by_data(dataset: Any) -> None:
    """Add the sizes of the data to the name of an index; their times would differ between copies on several nodes."""
    prefix = getattr(dataset, "dataset_path", None)
    if prefix is None:
        return
    files = [Path(f"{prefix}{suffix}") for suffix in (".idx", ".bin")]
    sizes = [file.stat().st_size for file in files if file.is_file()]
    dataset.unique_description += f"\nsizes of .idx and .bin: {sizes}"
    described = dataset.unique_description.encode("utf-8")
    dataset.unique_description_hash = hashlib.md5(described, usedforsecurity=False).hexdigest()


@contextlib.contextmanager
def _locked(cache: Path, index: str) -> Iterator[None]:
    """Hold the lock of an index during the block, if the file system has locks."""
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f".{index}.lock"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        descriptor = -1
    if descriptor < 0:  # a cache that only others write, and that may have the index
        yield
        return
    stop, heart = threading.Event(), None
    try:
        alone = _acquired(descriptor, path)
        # listing the folder makes an NFS client see the files that other nodes created
        unfinished = [file for file in cache.iterdir() if file.name.startswith(f".{index}-")]
        if alone:
            for file in unfinished:
                file.unlink(missing_ok=True)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{Owner.this_process()}\n".encode(), 0)
            heart = threading.Thread(target=_beat, args=(descriptor, stop), daemon=True)
            heart.start()
        yield
    finally:
        stop.set()
        if heart is not None:
            heart.join()
        os.close(descriptor)


def _acquired(descriptor: int, path: Path) -> bool:
    """Wait for a lock; return False if the file system has no locks or the owner has stopped updating its file."""
    began, beat, since, told = time.monotonic(), -1, 0.0, False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                print(f"> {path.parent} has no locks ({error.strerror}): builds its own index", flush=True)
                return False
        else:
            return True
        now, last = time.monotonic(), path.stat().st_mtime_ns
        if last != beat:
            beat, since = last, now
        owner = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "another training"
        if now - since > EXPIRY_S:
            print(f"> {owner} has not been heard of for {EXPIRY_S:.0f} s: builds its own index", flush=True)
            return False
        if now - began > _SILENT_S and not told:
            print(f"> waits for {owner}, which builds the index {path.name[1:9]}", flush=True)
            told = True
        time.sleep(_POLL_S)


def _beat(descriptor: int, stop: threading.Event) -> None:
    while not stop.wait(HEARTBEAT_S):
        with contextlib.suppress(OSError):
            os.utime(descriptor)
