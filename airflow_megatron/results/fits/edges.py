"""Optima at the edge of the tested values of a sweep: more values are needed to determine them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.results.fits.refusals import EdgeOptimumError

if TYPE_CHECKING:
    from airflow_megatron.results.fits.sweep_fits import SweepFits


def edge_texts(fits: SweepFits) -> list[str]:
    """Return one text for each size and token budget with an optimum at an edge: the setting, and what to train."""
    return [
        f"{f'{family.family}, ' if family.family else ''}{cell.name}: {cell.optimum}"
        for family in fits.families
        for cell in family.cells
        if isinstance(cell.optimum, EdgeOptimumError)
    ]
