"""A poller with predefined observations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_megatron.slurm.states.observation import Observation, Watch


class ScriptedSubscription:
    """Gives the looks one after another; each brings the part of the log that was not read yet.

    :param log: the job's log as it is at the last look; each look's ``log_size`` says how much of it there is
    """

    def __init__(self, looks: list[Observation], log: bytes, offset: int) -> None:
        self._looks = iter(looks)
        self._log = log
        self._offset = offset

    def update(self, **changes: Any) -> None:
        self._offset = changes["log_offset"]

    async def __aenter__(self) -> ScriptedSubscription:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def __aiter__(self) -> ScriptedSubscription:
        return self

    async def __anext__(self) -> Observation:
        try:
            look = next(self._looks)
        except StopIteration:
            raise StopAsyncIteration from None
        offset = self._offset
        chunk = self._log[offset : look.log_size][: 64 * 1024]
        self._offset += len(chunk)
        return replace(look, log_offset=offset, log_chunk=chunk)


class ScriptedPoller:
    """Answers every question with the same looks.

    :param looks: what each poll finds, the log apart
    :param log: the job's log at the end
    """

    def __init__(self, looks: list[Observation], log: bytes = b"") -> None:
        self.looks, self.log = looks, log

    def subscribe(self, watch: Watch) -> ScriptedSubscription:
        return ScriptedSubscription(self.looks, self.log, watch.log_offset)
