"""Groups of test files: one worker runs the files of a group in turn, and workers start groups in this order.

Files without a row are separate groups. Groups whose daemons cost processor time as long as they run start first, the
longest ones before the others; tests that only compute follow. Files with a shared expensive setup (Airflow's daemons
with a cluster, an interpreter that has loaded torch) are one group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    import pytest

TOGETHER: Final[dict[str, tuple[str, ...]]] = {
    "upstream": ("sweeps/test_studies", "attempts/test_upstream"),
    "airflow 1": (
        "sweeps/test_conditions",
        "sweeps/test_chain",
        "sweeps/test_secrets_of_jobs",
        "sweeps/test_clear_and_mark",
        "sweeps/test_housekeeping",
        "sites/test_two_clusters",
        "jobs/test_operators_in_airflow",
        "sweeps/test_corrected_spec",
        "attempts/test_killed_workers",
    ),
    "airflow 2": (
        "sweeps/test_stop_and_throttle",
        "sweeps/test_stopped_sweeps",
        "sweeps/test_failed_point",
        "sweeps/test_sweep_page",
        "attempts/test_interrupted_jobs",
        "attempts/test_health",
    ),
    "dags test": ("sweeps/test_dags_test", "sweeps/test_bad_cluster", "attempts/test_notices_of_jobs"),
    "storm": ("storm/test_storm", "faults/test_faults_in_airflow"),
    "attempts": (
        "attempts/test_attempt_chain",
        "attempts/test_damaged_runs",
        "attempts/test_fewer_nodes",
        "attempts/test_restart_budgets",
    ),
    "trainings": ("trainer/training/", "trainer/checkpoints/"),
    "trainer": ("tests/trainer/",),
    # each takes half a minute to three minutes, so none of them may be the last one
    "page": ("ui/live/",),
    "protocol": ("jobs/test_slurm_protocol",),
    "isolation": ("dag_factory/test_isolation",),
    "bombs": ("trust/test_bombs",),
    "iterations": ("studies/iterations/",),
    "local cluster": ("jobs/test_local_cluster",),
}
"""Name of a group → parts of the paths of its files, in the order in which groups start."""
_RANKS: Final = {group: rank for rank, group in enumerate(TOGETHER)}


def group_of(nodeid: str) -> str:
    """Return the group of a test; by default its file."""
    file = nodeid.split("::", 1)[0]
    for group, parts in TOGETHER.items():
        if any(part in file for part in parts):
            return group
    return file


class GroupScheduling(LoadFileScheduling):
    """``--dist loadfile``, with the groups as files."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order of their groups; otherwise keep the collected order."""
    return sorted(items, key=lambda item: _RANKS.get(group_of(item.nodeid), len(_RANKS)))
