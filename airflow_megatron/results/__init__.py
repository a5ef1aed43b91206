"""Results of a sweep: its run directories as tables, plots, fits and a report, and the store that keeps them.

Its packages, lowest first: ``readings``, ``store``, ``trackers``, ``tables``, ``fits``, ``plots``, ``report``.
Imports ``megatron``, ``slurm`` and ``spec``; no Airflow. For notebooks: ``airflow_megatron.results.load("sweep")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_megatron.results.store.reading import Results


def load(sweep: str, run: str | None = None, *, root: str | None = None) -> Results:
    """Return all stored data of a sweep, as data frames (:class:`airflow_megatron.results.store.reading.Results`).

    :param sweep: its name
    :param run: id of one of its runs in Airflow; None for all
    :param root: location of the store, a folder or any URL of fsspec; None for the configured one
    """
    from airflow_megatron.results.store.reading import load as read  # importing polars is slow

    return read(sweep, run, root=root)
