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
"""Folders between the one that is searched and a run's ``checkpoints``, that one counted."""

LISTING_SECONDS = 60
"""How long the listing of all runs may take."""

_WHOLE = frozenset({"0", "123"})
"""xargs ends with 123 when ``find`` failed without being killed: a directory went away while it was listed."""


@dataclass
class CheckpointFiles:
    """The lines of ``am_checkpoints`` (``shell/poll.sh``), taken in one by one.

    :param found: checkpoints folder → name of an ``iter_*`` directory → path in it → bytes
    :param slow: checkpoints folders that could not be listed in time
    """

    found: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    _files: dict[str, int] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    _listed: list[str] = field(default_factory=list)

    def take(self, word: str, rest: str) -> None:
        """Take in a line.

        :param word: its kind: ``D``, a directory; ``N``, one whose files are not listed; ``C``, a file in the
            last directory; ``T``, a folder that takes too long;
            ``listed``, how a part of the listing has ended. Other lines are passed over.
        :param rest: what follows it
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
        """Refuse a listing of which a part was killed.

        :raises TransportError: it has to be asked for again
        """
        if not self._listed or not _WHOLE.issuperset(self._listed):
            raise TransportError(
                f"the listing of the checkpoints is cut off (exit statuses {' '.join(self._listed)})"
            )


@dataclass(frozen=True)
class RunCheckpoints:
    """What is in the checkpoints folder of one run.

    :param run: the run's directory, relative to the folder that was searched
    :param tracker: text of the tracker file, None without one
    :param directories: name of an ``iter_*`` directory → path in it → bytes
    """

    run: str
    tracker: str | None
    directories: Mapping[str, Mapping[str, int]]


def listing_script(folder: str) -> str:
    """Return the remote script that lists the checkpoints of all runs.

    :param folder: absolute; a run's checkpoints lie in ``checkpoints`` somewhere below it
    """
    root = f"{folder.rstrip('/')}/"
    return framed(
        f"am_root={quote_path(root)}\nexport am_root\n{shell_file('poll')}\n"
        f"{shell_file('checkpoint_listing')}\nam_listing {LISTING_DEPTH} {LISTING_SECONDS}"
    )


def parse_listing(folder: str, result: CommandResult) -> list[RunCheckpoints]:
    """Return the runs that have a checkpoints folder, by their directories.

    :param folder: the one that the script was made for
    :raises TransportError: if the answer or the listing is not whole.
    :raises FileNotFoundError: if there is no such folder on the cluster.
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
            f"{', '.join(sorted(files.slow))} cannot be listed within {LISTING_SECONDS} s: too many files"
        )
    root = f"{folder.rstrip('/')}/"
    return [
        RunCheckpoints(path.rpartition("/")[0] or ".", trackers.get(index), files.found.get(root + path, {}))
        for index, path in enumerate(folders)
    ]
