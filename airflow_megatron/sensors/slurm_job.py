"""Sensor for the end of a job that SlurmSubmitOperator has submitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from airflow_megatron.operators.slurm_watch import SlurmWatchOperator

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import Context


class SlurmJobSensor(SlurmWatchOperator):
    """Wait until a job that SlurmSubmitOperator has submitted has finished. Always deferrable.

    An attempt that ends early is followed by another if the job's restart policy allows it; otherwise the sensor fails.
    Returns the verdict: ``outcome``, ``reason``, ``state``, ``job_id``, ``attempt``, ``exit_code`` …

    :param submission: result of the submitting task: ``submit.output`` (templated)
    :param kwargs: ``poll_interval``, ``timeout``, ``cancel_on_kill``, see
        :class:`~airflow_megatron.operators.slurm_watch.SlurmWatchOperator`
    """

    template_fields: Sequence[str] = ("submission",)
    template_fields_renderers = {"submission": "json"}  # noqa: RUF012
    ui_color = "#e6f1f2"
    operator_extra_links = ()  # type: ignore[assignment]

    def __init__(self, *, submission: Mapping[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(job=None, handle=None, **kwargs)
        self.submission = submission

    def execute(self, context: Context) -> dict[str, Any]:
        """Start waiting."""
        self._read_submission()
        return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume the task after a trigger has fired."""
        self._read_submission()
        return super().resume_execution(next_method, next_kwargs, context)

    def _read_submission(self) -> None:
        """Read job and handle from the submission."""
        try:
            self.job, self.handle = self.submission["job"], self.submission["handle"]  # type: ignore[index]
        except (KeyError, TypeError):
            raise AirflowFailException(
                "submission is not what a SlurmSubmitOperator with a job of its own returns: pass submit.output"
            ) from None
