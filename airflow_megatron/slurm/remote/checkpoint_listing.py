"""The checkpoints of all runs below a folder of the cluster, listed with one remote command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_megatron.slurm.remote.framing import framed, unframed
from airflow_megatron.slurm.remote.quoting import quote_path
from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

if TYPE_CHECKING:
    from collections.abc import Mapping

LISTING_DEPTH = 6
"""Maximum depth of a run's ``checkpoints`` directory below the searched directory."""

LISTING_SECONDS = 60
"""Time limit for the listing of all runs, in seconds."""

CHECKPOINT_BYTES = 8 << 20
"""Maximum length of the list of one checkpoint directory: some 200,000 files."""

CHECKPOINT_BYTES_PER_POLL = 24 << 20
"""Maximum length of the lists of a poll; a slow connection transfers them within the time limit of a command."""

_ALL_BYTES = 1 << 30
"""Likewise for the listing of all runs, which a person waits for."""

_WHOLE = frozenset({"0", "123"})
"""xargs exits with 123 when ``find`` failed without being killed: a directory was removed during the listing."""


@dataclass
class CheckpointFiles:
    """Parser of the output of ``am_checkpoints`` (``shell/poll.sh``), line by line.

    :param found: checkpoint directory → name of an ``iter_*`` directory → path in it → size in bytes
    :param slow: checkpoint directories that could not be listed within the limits
    """

    found: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    _files: dict[str, int] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    _listed: list[str] = field(default_factory=list)

    def take(self, word: str, rest: str) -> None:
        """Parse one line.

        :param word: kind of the line: ``D``, a directory; ``N``, a directory whose files are not listed; ``C``, a file
            in the last directory; ``T``, a directory that exceeded a limit; ``listed``, the exit status of a
            part of the listing. Other lines are ignored.
        :param rest: the rest of the line
        :raises ValueError: for a file without a size
        """
        match word:
            case "D":
                self._files = self._directory(rest)
            case "N":
                self._directory(rest)
            case "C":
                size, _, name = rest.partition(" ")
                self._files[name] = int(size)
            case "T":
                self.slow.add(rest)
            case "listed":
                self._listed.append(rest)

    def _directory(self, path: str) -> dict[str, int]:
        folder, _, name = path.rpartition("/")
        return self.found.setdefault(folder, {}).setdefault(name, {})

    def check_whole(self) -> None:
        """Refuse an incomplete listing, of which a part was killed.

        :raises TransportError: the listing must be repeated
        """
        if not self._listed or not _WHOLE.issuperset(self._listed):
            raise TransportError(
                f"the listing of the checkpoints is cut off (exit statuses {' '.join(self._listed)})"
            )


@dataclass(frozen=True)
class RunCheckpoints:
    """The content of the checkpoint directory of one run.

    :param run: the run's directory, relative to the searched directory
    :param tracker: text of the tracker file, None if it does not exist
    :param directories: name of an ``iter_*`` directory → path in it → size in bytes
    """

    run: str
    tracker: str | None
    directories: Mapping[str, Mapping[str, int]]


def listing_script(folder: str) -> str:
    """Return the remote script that lists the checkpoints of all runs.

    :param folder: absolute path; the runs with their ``checkpoints`` directories are below it
    """
    root = f"{folder.rstrip('/')}/"
    return framed(
        f"am_root={quote_path(root)}\nexport am_root\n{shell_file('poll')}\n"
        f"{shell_file('checkpoint_listing')}\n"
        f"am_listing {LISTING_DEPTH} {LISTING_SECONDS} {CHECKPOINT_BYTES} {_ALL_BYTES}"
    )


def parse_listing(folder: str, result: CommandResult) -> list[RunCheckpoints]:
    """Return the runs that have a checkpoint directory, sorted by run directory.

    :param folder: the argument of :func:`listing_script`
    :raises TransportError: if the output or the listing is incomplete.
    :raises FileNotFoundError: if the directory does not exist on the cluster.
    """
    folders: list[str] = []
    trackers: dict[int, str] = {}
    files = CheckpointFiles()
    for line in unframed(result):
        word, _, rest = line.partition(" ")
        try:
            match word:
                case "absent":
                    raise FileNotFoundError(f"there is no folder {folder} on the cluster")
                case "K":
                    folders.append(rest)
                case "L":
                    index, _, text = rest.partition(" ")
                    trackers[int(index)] = text
                case _:
                    files.take(word, rest)
        except ValueError:
            raise TransportError(f"unexpected line in a listing: {line!r}") from None
    files.check_whole()
    if files.slow:
        raise TransportError(
            f"{', '.join(sorted(files.slow))} cannot be listed within {LISTING_SECONDS} s "
            f"and {CHECKPOINT_BYTES >> 20} MiB: too many files"
        )
    root = f"{folder.rstrip('/')}/"
    return [
        RunCheckpoints(path.rpartition("/")[0] or ".", trackers.get(index), files.found.get(root + path, {}))
        for index, path in enumerate(folders)
    ]
