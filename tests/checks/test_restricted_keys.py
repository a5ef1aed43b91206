"""What a restricted key cannot do is refused before submission."""

from __future__ import annotations

import pytest

from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.model.cluster_profile import ClusterProfile
from airflow_megatron.spec.spec_files import load_sweep_text

SPEC = """\
name: bound
point: p
stages:
  work: {{kind: command, command: ["true"]}}
  next: {{kind: command, command: ["true"], parent: work, {keys}}}
"""


def profile(*, restricted: bool) -> ClusterProfile:
    values = {"ssh_conn_id": "c", "run_root": "/runs", "python": "/python", "megatron_lm_dir": "/programs"}
    return ClusterProfile.model_validate({"name": "site", "restricted": restricted, **values})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("start: {command: test -e /x}", "runs no command of a condition"),
        ("start: {file: /elsewhere/x}", "cannot read /elsewhere/x"),
        ("cancel: {not: {file: /runs2/x}}", "cannot read /runs2/x"),
        ("events: [{log: x, do: run, command: id}]", "runs no command of an event"),
    ],
)
def test_what_needs_an_unrestricted_key_is_refused(keys: str, message: str) -> None:
    sweep = load_sweep_text(SPEC.format(keys=keys), "bound.yaml")
    check_sweep(sweep, profile(restricted=False))
    with pytest.raises(SpecError, match=message) as refused:
        check_sweep(sweep, profile(restricted=True))
    assert "bound.yaml:5" in str(refused.value)


@pytest.mark.parametrize("keys", ["start: {file: /runs/x}", "start: {file: made}", "params: {}"])
def test_what_the_key_can_do_is_accepted(keys: str) -> None:
    check_sweep(load_sweep_text(SPEC.format(keys=keys), "bound.yaml"), profile(restricted=True))
