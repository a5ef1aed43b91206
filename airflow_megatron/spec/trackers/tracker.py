"""Interface of experiment trackers: services that receive the records of trainings from Airflow's side.

This package's own trackers are in :mod:`airflow_megatron.results.trackers`; another package registers its own with
entry points of the group ``airflow_megatron.trackers``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from airflow_megatron.errors import AirflowMegatronError
from airflow_megatron.spec.registry.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType


class TrackerError(AirflowMegatronError, RuntimeError):
    """A tracker cannot be used, or does not answer; the message holds no credentials."""


@dataclass(frozen=True)
class TrackerAccess:
    """Address and credentials of a tracker, from an Airflow connection; credentials are not part of the ``repr``.

    :param url: of the server, without credentials; empty for the tracker's default
    :param user: empty without one
    :param password: password, token or API key; empty without one
    :param options: the connection's extras
    """

    url: str = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TrackedTraining:
    """A training as a tracker shows it: one run, over all attempts, rollbacks, and the trunk that it branched from.

    :param sweep: name of the sweep
    :param point: name of the point
    :param stage: name of the stage
    :param params: what the sweep varies, as text
    """

    sweep: str
    point: str
    stage: str
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the run."""
        return f"{self.point}/{self.stage}"

    @property
    def key(self) -> str:
        """Identity of the run: the same in each push."""
        return f"{self.sweep}/{self.point}/{self.stage}"


class TrackedRecord(NamedTuple):
    """All that is known of one iteration of a training.

    :param step: the iteration
    :param time: Unix time in seconds at which it was read
    :param values: metric → value
    """

    step: int
    time: float
    values: dict[str, float]


class TrackerSession:
    """An open connection to a tracker, of one process."""

    def last_step(self, training: TrackedTraining) -> int | None:
        """Return the step up to which the tracker has all records of a training; None if it has no record.

        The tracker's own records answer this, so that nothing is sent again that it has received from a process that
        was killed before it noted so.

        :raises TrackerError: if the tracker does not answer
        """
        raise NotImplementedError(f"{type(self).__name__} has no last_step")

    def push(self, training: TrackedTraining, records: Sequence[TrackedRecord]) -> None:
        """Send records; those that were accepted before an error count as sent.

        :param records: steps rise strictly, from above :meth:`last_step`
        :raises TrackerError: if the tracker does not accept them
        """
        raise NotImplementedError(f"{type(self).__name__} has no push")

    def finish(self, training: TrackedTraining) -> None:
        """Mark the run as ended; records may follow later, when its sweep is continued.

        :raises TrackerError: if the tracker does not answer
        """

    def close(self) -> None:
        """End the session."""

    def __enter__(self) -> TrackerSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Tracker:
    """A kind of tracker."""

    job_arguments: ClassVar[tuple[str, ...]] = ()
    """Megatron arguments by which a job would send its own records to it."""

    def open(self, access: TrackerAccess, project: str) -> TrackerSession:
        """Return a session.

        :param project: name under which the runs of a sweep stand together
        :raises TrackerError: if the tracker does not answer, or the access is incomplete
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be opened")


_CLASSES: Final = "airflow_megatron.results.trackers"
TRACKERS: Final = Registry(
    Tracker,
    "airflow_megatron.trackers",
    {
        "mlflow": f"{_CLASSES}.mlflow:Mlflow",
        "wandb": f"{_CLASSES}.wandb:Wandb",
        "trackio": f"{_CLASSES}.trackio:Trackio",
    },
)
