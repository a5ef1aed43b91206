from __future__ import annotations

import string
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_megatron.slurm.remote.framing import framed, here_document, unframed
from airflow_megatron.slurm.remote.quoting import (
    QuotingError,
    checked_job_id,
    checked_path,
    quote,
    quote_glob,
)
from airflow_megatron.slurm.remote.transport import CommandResult

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))


def sh(script: str) -> bytes:
    return subprocess.run(["/bin/sh", "-s"], input=script.encode(), capture_output=True, check=True).stdout


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.lists(TEXT, min_size=1, max_size=40))
def test_any_text_survives_a_shell(values):
    words = " ".join(quote(value) for value in values)
    assert sh(f"printf '%s\\0' {words}").decode().split("\0")[:-1] == values


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(TEXT)
@example("A\u00e9")  # dash loses a byte when the delimiter begins like the line
@example("\n".join(f"{letter}M\u00e9" for letter in string.ascii_uppercase))
def test_any_text_survives_a_here_document(text):
    expected = text if text.endswith("\n") else text + "\n"
    assert sh(f"cat {here_document(text)}").decode() == expected


@pytest.mark.parametrize("value", ["a\0b", "\udc80"])
def test_text_that_no_shell_can_pass_on(value):
    with pytest.raises(QuotingError):
        quote(value)


@pytest.mark.parametrize("path", ["relative/x", "", "/a\nb", "/a\tb", "/a\x7f"])
def test_unusable_paths(path):
    with pytest.raises(QuotingError):
        checked_path(path)


@pytest.mark.parametrize("job_id", ["7", "123_4", "123+0"])
def test_job_ids(job_id):
    assert checked_job_id(job_id) == job_id


@pytest.mark.parametrize(
    "job_id", ["", "7;c", "-7", "7 8", "7_", "123_[1-3]", "７", "9" * 140_000], ids=lambda text: text[:9]
)
def test_not_job_ids(job_id):
    with pytest.raises(QuotingError):
        checked_job_id(job_id)


def test_globs_expand_and_nothing_else(tmp_path):
    directory = tmp_path / "it's a $(dir) [x]"
    directory.mkdir()
    for name in ("iter_1.done", "iter_22.done", "other"):
        (directory / name).touch()
    pattern = f"{tmp_path}/it's a $(dir) ?x?/iter_*.done"
    assert sh(f"printf '%s\\n' {quote_glob(pattern)}").decode().splitlines() == [
        f"{directory}/iter_1.done",
        f"{directory}/iter_22.done",
    ]
    assert sh(f"printf '%s\\n' {quote_glob(f'{directory}/iter_[0-1].done')}").decode().splitlines() == [
        f"{tmp_path}/it's a $(dir) [x]/iter_[0-1].done"  # [x] is a character class: no such directory
    ]


def test_frame_is_found_in_noise():
    script = framed("printf 'a\\n\\nb'")
    out = sh(f"echo banner\nprintf 'no newline'\n{script}\necho bye").decode()
    assert unframed(CommandResult(0, out, "")) == ["a", "", "b"]
