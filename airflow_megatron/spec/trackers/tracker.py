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
    """A tracker cannot be used, or does not answer; the message contains no credentials."""


@dataclass(frozen=True)
class TrackerAccess:
    """Address and credentials of a tracker, from an Airflow connection; credentials are not part of the ``repr``.

    :param url: address of the server, without credentials; empty for the tracker's default
    :param user: user name, empty without one
    :param password: password, token or API key; empty without one
    :param options: the connection's extras
    """

    url: str = ""
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TrackedTraining:
    """A training as one run of a tracker, including all attempts, rollbacks, and the trunk from which it branches.

    :param sweep: name of the sweep
    :param point: name of the point
    :param stage: name of the stage
    :param params: the swept parameters, as text
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
        """Identity of the run, the same in each push."""
        return f"{self.sweep}/{self.point}/{self.stage}"


class TrackedRecord(NamedTuple):
    """All known values of one iteration of a training.

    :param step: the iteration
    :param time: Unix time in seconds at which it was read
    :param values: metric → value
    """

    step: int
    time: float
    values: dict[str, float]


class TrackerSession:
    """An open connection of one process to a tracker."""

    def last_step(self, training: TrackedTraining) -> int | None:
        """Return the step up to which the tracker has all records of a training; None if it has no record.

        This comes from the tracker's own records, so that no record is sent again that a killed process has sent but
        not noted.

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

        :param project: name of the project of the runs of a sweep
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
