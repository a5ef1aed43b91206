"""Optima at the edge of the values that a sweep has tested: more values are needed before they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_megatron.results.fits.refusals import EdgeOptimumError

if TYPE_CHECKING:
    from airflow_megatron.results.fits.sweep_fits import SweepFits


def edge_texts(fits: SweepFits) -> list[str]:
    """Return one text for each size and token budget whose optimum is at an edge; which setting, and what to train."""
    return [
        f"{f'{family.family}, ' if family.family else ''}{cell.name}: {cell.optimum}"
        for family in fits.families
        for cell in family.cells
        if isinstance(cell.optimum, EdgeOptimumError)
    ]
