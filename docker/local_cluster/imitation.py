"""Properties of an imitated site: its partitions, submission filter, nodes and login limits.

A JSON file describes it; ``up --imitate FILE`` copies the file into the cluster's directory and keeps it for later
starts. Slurm and sshd then refuse the same requests as those of the site.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from local_cluster.errors import ClusterError

if TYPE_CHECKING:
    from pathlib import Path

#: Port of nodes without slurmd: nothing listens there.
ABSENT_PORT = 1


@dataclass(frozen=True)
class Imitation:
    """An imitated site.

    :param site: its name.
    :param partitions: name → options of slurm.conf(5); the first is the default. They replace the local ones.
    :param absent_nodes: nodes without slurmd that Slurm counts, so that it accepts large jobs, which stay pending.
    :param features: features of each node, for ``--constraint``.
    :param gpu_requests: whether Slurm knows GPUs; otherwise it refuses each request for them.
    :param qualities: qualities of service in addition to ``normal``.
    :param queued_of_quality: quality of service → its maximum number of a user's jobs (``MaxSubmitJobsPerUser``).
    :param queued: maximum number of a user's jobs on the site; 0 for no limit.
    :param filter: text of job_submit.lua; empty for none.
    :param sshd: additional options of sshd_config(5).
    :param environment: environment variables of login sessions, and so of their jobs; without spaces.
    """

    site: str
    partitions: dict[str, str]
    absent_nodes: int = 0
    features: list[str] = field(default_factory=list)
    gpu_requests: bool = True
    qualities: list[str] = field(default_factory=list)
    queued_of_quality: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    filter: str = ""
    sshd: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)


def load_imitation(path: Path) -> Imitation | None:
    """Read a description; None if the file does not exist.

    :raises ClusterError: if it is not a description of a site.
    """
    try:
        found = json.loads(path.read_text())
        unknown = set(found) - {known.name for known in fields(Imitation)}
        if unknown:
            raise ValueError(f"unknown keys {', '.join(sorted(unknown))}")
        imitation = Imitation(**found)
        if not imitation.partitions:
            raise ValueError("no partitions")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise ClusterError(f"{path} is not a valid description of a site ({error})") from error
    return imitation
