"""The sweep that a word on the command line names, also after its spec was deleted or damaged during a run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_megatron.cli.plans.spec_options import load_spec
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.dag_names import point_dag_id
from airflow_megatron.spec.spec_files import load_sweep_text

if TYPE_CHECKING:
    from airflow_megatron.spec.model.sweep import Sweep

log = logging.getLogger(__name__)


def known_sweep(word: str) -> Sweep:
    """Return the sweep of a spec; if the spec no longer exists or is invalid, the newest stored plan with this name.

    :raises SpecError: if neither exists
    """
    try:
        return load_spec(word)
    except SpecError as error:
        store = PinStore()
        planned = ((dag_id, runs[0]) for dag_id in (word, point_dag_id(word)) if (runs := store.runs(dag_id)))
        newest = next(planned, None)
        digest = store.newest(*newest) if newest else None
        if digest is None:
            raise
        try:
            pinned = PinnedSweep.read(digest, store)
        except PinError as damaged:
            log.warning("%s", damaged)
            raise error from None
        log.warning("the newest stored plan of %s is used: %s", word, error.problems[0])
        return load_sweep_text(pinned.text, pinned.file, pinned.sources)
