"""The policies that are compared."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, Literal

from airflow_megatron.simulation.site.site import HOUR, MINUTE
from airflow_megatron.slurm.verdicts.restarts import RestartPolicy
from airflow_megatron.spec.model.schema import RestartSection, SweepSpecSection
from airflow_megatron.supervision.attempt_preparation import policy_of

SupervisorName = Literal["project", "by hand", "relaunch loop"]
"""This project's policy code; a person alone; a loop that resubmits jobs that left the queue."""


@dataclass(frozen=True)
class Policy:
    """A policy for supervising jobs.

    :param name: short name for tables.
    :param difference: description of its difference to the other policies.
    :param supervisor: the implementation.
    :param restart: restart policy of the project's supervisor.
    :param poll_s: seconds between two polls of the cluster.
    :param idle_s: seconds without a new iteration after which a job is cancelled and restarted; None: never.
    :param quarantine: maximum number of quarantined checkpoints.
    :param save_interval_factor: interval between checkpoints, as a multiple of Young's optimum.
    :param on_call: whether a person answers alarms at any hour, not only in working hours.
    """

    name: str
    difference: str
    supervisor: SupervisorName = "project"
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    poll_s: float = 15.0
    idle_s: float | None = 30 * MINUTE
    quarantine: int = 2
    save_interval_factor: float = 1.0
    on_call: bool = False


SPEC_DEFAULTS: Final = policy_of(RestartSection(), training=True)
UNBOUNDED: Final = replace(SPEC_DEFAULTS, retryable=None, failed=None, rollbacks=1000)
"""No budgets: only consecutive attempts without progress end a job."""

_BASE: Final = Policy(
    "no budgets",
    "attempts are restarted and rolled back as long as they make progress",
    restart=UNBOUNDED,
    poll_s=float(SweepSpecSection.model_fields["poll_interval"].default),
)

POLICIES: Final[tuple[Policy, ...]] = (
    replace(
        _BASE, name="spec defaults", difference="the policy of a spec without restart:", restart=SPEC_DEFAULTS
    ),
    replace(
        _BASE,
        name="no retryable budget",
        difference="retryable: null",
        restart=replace(SPEC_DEFAULTS, retryable=None),
    ),
    _BASE,
    replace(_BASE, name="person on call", difference="alarms are answered at night, too", on_call=True),
    replace(
        _BASE,
        name="no node exclusion",
        difference="exclude_failed_nodes: false",
        restart=replace(UNBOUNDED, exclude_failed_nodes=False),
    ),
    replace(
        _BASE,
        name="no pause",
        difference="restart at once, without a back-off",
        restart=replace(UNBOUNDED, backoff_s=0.0),
    ),
    replace(_BASE, name="no hang detection", difference="a person finds hangs", idle_s=None),
    replace(_BASE, name="hangs after 10 min", difference="idle: 10 min", idle_s=10 * MINUTE),
    replace(_BASE, name="no quarantine", difference="a person moves the tracker back", quarantine=0),
    replace(
        _BASE,
        name="checkpoints 4× as often",
        difference="a quarter of Young's interval",
        save_interval_factor=0.25,
    ),
    replace(
        _BASE,
        name="checkpoints 4× as rarely",
        difference="four times Young's interval",
        save_interval_factor=4.0,
    ),
    replace(_BASE, name="poll every 60 s", difference="poll_interval: 60", poll_s=60.0),
    replace(_BASE, name="poll every 5 min", difference="poll_interval: 300", poll_s=300.0),
    Policy(
        "relaunch loop",
        "AutoExperiment: every 15 min, jobs that left the queue are submitted again; a silent log counts as a hang",
        supervisor="relaunch loop",
        poll_s=0.25 * HOUR,
    ),
    Policy(
        "by hand",
        "a person checks the jobs every hour of working days, repairs them and submits them again",
        supervisor="by hand",
    ),
)
