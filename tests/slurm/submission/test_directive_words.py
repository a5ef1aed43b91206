"""The arguments in ``#SBATCH`` lines."""

from __future__ import annotations

import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_megatron.slurm.submission.sbatch_options import split_directive

PLAIN = string.ascii_letters + string.digits + "-=,./%:[]{}$()+@~*!?&<>|^_;` \t"


def shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


@pytest.mark.slow
@given(st.text(alphabet=PLAIN + "\"'\\#\r\v\x1c\u00a0\u2028é"))
def test_are_those_of_a_shell(text: str) -> None:
    assert split_directive(text) == shell_words(text)


@pytest.mark.parametrize("character", [chr(code) for code in range(256)])
def test_of_every_character(character: str) -> None:
    text = f"--a{character}b {character} c"
    assert split_directive(text) == shell_words(text)
