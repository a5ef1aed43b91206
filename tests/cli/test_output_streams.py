"""Commands whose output is closed, full, ends early or has another encoding."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from airflow_megatron.cli.console.streams import answering


class Unwritable(io.StringIO):
    """A stream on which no text can be written.

    :param number: ``errno`` of the failure
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def write(self, text: str, /) -> int:
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the output cannot be written: No space left on device\n"),
        (errno.EPIPE, ""),
    ],
)
def test_an_output_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, message: str
) -> None:
    monkeypatch.setattr(sys, "stdout", Unwritable(number))
    with pytest.raises(SystemExit) as ended, answering():
        print("answer")
    assert ended.value.code == 1
    assert capsys.readouterr().err == message


def test_an_output_that_fails_when_it_is_flushed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = io.TextIOWrapper(io.BufferedWriter(io.FileIO("/dev/full", "w")))
    monkeypatch.setattr(sys, "stdout", full)
    with pytest.raises(SystemExit) as ended, answering():
        print("answer")
    assert ended.value.code == 1
    assert "No space left on device" in capsys.readouterr().err


def test_a_closed_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with answering():
        print("answer")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_an_encoding_without_some_characters(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    with answering():
        print("├─ 5 … \udcff")
    assert written.getvalue().decode() == "├─ 5 … \\udcff\n"


def test_an_error_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, answering():
        Path("/proc/none/x").read_text()
    assert ended.value.code == 1
    assert capsys.readouterr().err == "/proc/none/x: No such file or directory\n"


def test_other_errors_are_not_hidden() -> None:
    with pytest.raises(ConnectionRefusedError), answering():
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")


def test_the_local_folder_of_another_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_MEGATRON_LOCAL", str(tmp_path / "local"))
    pins = str(tmp_path / "local" / "pins")
    with pytest.raises(SystemExit), answering():
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), pins)
    hint = "set AIRFLOW_MEGATRON_LOCAL to a folder of your own"
    assert capsys.readouterr().err == f"{pins}: Permission denied; {hint}\n"
