"""The priority of the jobs of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NICE = "nice: 10 # Slurm and Airflow share the cores and have priority\n"


def drop_nice(clusters: Path) -> None:
    """Let the jobs of the profile ``local`` run at normal priority.

    Tests on other workers keep the cores busy, so that jobs of low priority would reach their walltimes.

    :param clusters: a folder with copies of the project's profiles
    """
    profile = clusters / "local.yaml"
    text = profile.read_text()
    assert NICE in text
    profile.write_text(text.replace(NICE, ""))
