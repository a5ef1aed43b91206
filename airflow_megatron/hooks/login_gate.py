"""State of the login of a connection, shared by all processes: whether it is refused, and when to try again.

If a login that worked before is refused, tasks wait. All processes together then try it as rarely as a single process
would, because sites lock accounts or block addresses after several failed logins.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shlex
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from airflow_megatron.hooks.credentials import (
    certificate_path,
    certificate_validity,
    credentials_stamp,
    run_renewal,
)
from airflow_megatron.notices.notice_files import NoticePathError, append_line
from airflow_megatron.slurm.remote.transport import LoginExpiredError, LoginRefusedError
from airflow_megatron.spec.documents.project import local_dir
from airflow_megatron.spec.trust.json_records import read_object, real, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from airflow_megatron.hooks.connection_options import ConnectionOptions
    from airflow_megatron.hooks.credentials import Validity
    from airflow_megatron.slurm.remote.transport import TransportError

FIRST_PAUSE_S: Final = 60.0
LONGEST_PAUSE_S: Final = 600.0
"""Seconds between two logins while they are refused; replaced credentials are tried at once."""
RENEW_AHEAD_S: Final = 600.0
NOTICE_AHEAD_S: Final = 3600.0
LOOK_EVERY_S: Final = 20.0
"""Seconds between two checks of the certificate's end in a process that runs commands."""
NOTICE_FILE: Final = "logins.jsonl"

log = logging.getLogger(__name__)


@dataclass
class LoginRecord:
    """The record of one connection.

    :param accepted: Unix time of the first login that worked; 0 for none
    :param refused: Unix time since when logins are refused; 0 while they are not
    :param refusals: number of refusals since then
    :param next_try: Unix time before which no process tries again
    :param stamp: :func:`.credentials_stamp` of the refused credentials
    :param next_renewal: Unix time before which ``renew_command`` does not run again
    :param renewals: number of its runs since the last login that worked
    :param noticed_refusal: value of *refused* of the last notice about refusals
    :param noticed_end: end of the certificate of the last notice about certificates
    :param trouble: why the last renewal failed, empty if it did not
    """

    accepted: float = 0.0
    refused: float = 0.0
    refusals: int = 0
    next_try: float = 0.0
    stamp: str = ""
    next_renewal: float = 0.0
    renewals: int = 0
    noticed_refusal: float = 0.0
    noticed_end: float = 0.0
    trouble: str = ""

    def settle(self) -> None:
        """Forget a refusal."""
        self.refused = self.next_try = 0.0
        self.refusals = self.renewals = 0
        self.stamp = self.trouble = ""

    @classmethod
    def read(cls, text: str) -> LoginRecord:
        """Read a record; damaged values count as absent."""
        data = read_object(text) or {}
        record = cls()
        for each in fields(cls):
            default = each.default
            value = data.get(each.name)
            if isinstance(default, int):
                setattr(record, each.name, whole(value, default))
            elif isinstance(default, float):
                setattr(record, each.name, real(value, default))
            elif isinstance(value, str):
                setattr(record, each.name, value)
        return record


class LoginGate:
    """The permission for each login over a connection; callers report the result.

    Methods block for as long as ``renew_command`` runs; call them outside of the event loop.

    :param options: the connection
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._looked = float("-inf")
        self._validity: tuple[tuple[int, int], Validity | None] | None = None

    def enter(self) -> None:
        """Renew the credentials if that is due, and return if a login may be tried now; never wait for the next try.

        :raises LoginExpiredError: if logins are refused, and it is too early for the next one
        :raises LoginRefusedError: likewise, after ``login_patience``
        """
        with self._locked() as record:
            self._attend(record)
            if not record.refused:
                return
            now, stamp = time.time(), credentials_stamp(self._options)
            if record.stamp == stamp and now < record.next_try:
                raise self._refusal(record, now)
            record.stamp, record.next_try = stamp, now + _pause(record.refusals)

    def attend(self) -> None:
        """Renew a certificate that ends soon, or send a notice of its end; for connections that stay open."""
        if time.monotonic() - self._looked < LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        if certificate_path(self._options) is not None:
            with self._locked() as record:
                self._attend(record)

    def accepted(self) -> None:
        """Record that a login has worked."""
        with self._locked() as record:
            if record.refused:
                log.info("%s accepts the login again", self._options.address)
            record.accepted = record.accepted or time.time()
            record.settle()

    def refused(self, message: str) -> TransportError:
        """Record that a login was refused; return the error to raise.

        :param message: the login node's answer, and what to check
        :return: :class:`LoginExpiredError` if the login worked before, its certificate has ended or a command can renew
            it, and ``login_patience`` is not over; :class:`LoginRefusedError` otherwise
        """
        options = self._options
        with self._locked() as record:
            now = time.time()
            validity = self._certificate()
            ended = validity is not None and validity.end <= now
            renewable = bool(options.renew_command) and record.renewals == 0
            if not (record.accepted or ended or renewable):
                record.settle()
                return LoginRefusedError(message)
            record.refused = record.refused or now
            record.refusals += 1
            record.stamp, record.next_try = credentials_stamp(options), now + _pause(record.refusals)
            # renew_command runs before a user is notified
            if record.refused != record.noticed_refusal and not renewable:
                record.noticed_refusal = record.refused
                self._notify("login refused", f"{message}; tasks wait. {self._hint(record.trouble)}")
            return self._refusal(record, now)

    def no_session(self, message: str) -> None:
        """Send one notice that the user's session at ``control_path`` has ended.

        :param message: with the command to log in again
        """
        with self._locked() as record:
            if not record.refused:
                record.refused = time.time()
                self._notify("no login session", message)

    def _attend(self, record: LoginRecord) -> None:
        now = time.time()
        validity = self._certificate()
        command = self._options.renew_command
        if command:
            ends = validity is not None and validity.ends_within(RENEW_AHEAD_S, now)
            same = record.refused and record.stamp == credentials_stamp(self._options)
            if (ends or same) and now >= record.next_renewal:
                record.trouble = run_renewal(command)
                record.renewals += 1
                record.next_renewal = time.time() + _pause(record.renewals)
                if record.trouble:
                    log.warning("connection %r: %s", self._options.conn_id, record.trouble)
                else:
                    log.info("connection %r: renew_command has run", self._options.conn_id)
                    record.next_try = 0.0
            if not record.trouble:
                return
        if validity is None or record.noticed_end == validity.end:
            return
        if validity.ends_within(NOTICE_AHEAD_S, now):
            record.noticed_end = validity.end
            verb = "ended" if validity.end <= now else "ends"
            end = datetime.fromtimestamp(validity.end, UTC)
            text = f"the certificate {verb} at {end:%Y-%m-%d %H:%M} UTC; {self._hint(record.trouble)}"
            self._notify(f"certificate {verb}", f"{self._options.address}: {text}")

    def _certificate(self) -> Validity | None:
        path = certificate_path(self._options)
        try:
            status = path.stat() if path is not None else None
        except OSError:
            status = None
        if path is None or status is None:
            return None
        key = (status.st_mtime_ns, status.st_ino)
        if self._validity is None or self._validity[0] != key:
            self._validity = (key, certificate_validity(path))
        return self._validity[1]

    def _refusal(self, record: LoginRecord, now: float) -> TransportError:
        since = datetime.fromtimestamp(record.refused, UTC)
        text = f"{self._options.address}: login refused since {since:%Y-%m-%d %H:%M} UTC"
        if now - record.refused >= self._options.login_patience:
            return LoginRefusedError(f"{text}, for longer than login_patience; {self._hint(record.trouble)}")
        return LoginExpiredError(f"{text}; {self._hint(record.trouble)}")

    def _hint(self, trouble: str) -> str:
        options = self._options
        words = ["ssh", *(["-i", str(options.key_file)] if options.key_file else [])]
        words += ["-p", str(options.port)] if options.port else []
        check = shlex.join([*words, f"{options.user}@{options.host}" if options.user else options.host])
        what = f"{trouble}, " if trouble else ""
        return f"{what}renew the credentials of connection {options.conn_id!r}, and check them with: {check}"

    def _notify(self, what: str, text: str) -> None:
        log.warning("%s", text)
        notice = {"time": time.time(), "connection": self._options.conn_id, "what": what, "text": text}
        try:
            append_line(NOTICE_FILE, json.dumps(notice))
        except (OSError, NoticePathError) as error:
            log.warning("the notice cannot be written: %s", error)

    def _path(self) -> Path:
        options = self._options
        own = json.dumps(
            [options.conn_id, options.address, str(options.key_file or ""), options.control_path]
        )
        return local_dir() / "logins" / f"{hashlib.sha256(own.encode()).hexdigest()[:24]}.json"

    @contextmanager
    def _locked(self) -> Iterator[LoginRecord]:
        """Yield the record, locked for all other processes; write its changes at the end, also if the block raises.

        If no file can be written, the record is empty, and every refusal is final.
        """
        try:
            path = self._path()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.debug("the state of logins cannot be kept: %s", error)
            yield LoginRecord()
            return
        with os.fdopen(file, "r+", encoding="utf-8", errors="replace") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX)
            record = LoginRecord.read(opened.read())
            before = asdict(record)
            try:
                yield record
            finally:
                if asdict(record) != before:
                    opened.seek(0)
                    opened.write(json.dumps(asdict(record)))
                    opened.truncate()


def _pause(failures: int) -> float:
    """Return the seconds until the next try after some refusals."""
    return float(min(FIRST_PAUSE_S * 2.0 ** min(max(failures - 1, 0), 16), LONGEST_PAUSE_S))
