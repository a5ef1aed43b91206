"""The ``cmd`` of AutoExperiment jobs: what of it this package can give sbatch.

AutoExperiment runs ``cmd`` in a shell, and takes the number that sbatch prints for the job's. This package gives sbatch
the rendered script itself, with the options that stand before the script.
"""

from __future__ import annotations

import functools
import posixpath
import re
import shlex
from dataclasses import dataclass

_QUOTING = re.compile(r"[\\'\"]")
_OPERATORS = re.compile(r"[;&|<>()\n]")
_SHELL_SIGNS = ";&|<>()\n"
_COMPUTED = re.compile(r"[$`]")


@dataclass(frozen=True)
class SubmitCommand:
    """A command that submits a job.

    :param words: its words, without quotes
    :param options: of sbatch, before the script
    :param is_plain: whether it is one call of sbatch and nothing else
    :param names_script: whether that call names the job's own script
    """

    words: tuple[str, ...]
    options: tuple[str, ...] = ()
    is_plain: bool = False
    names_script: bool = True


@functools.lru_cache(maxsize=4096)  # the checks and the job ask for the same command
def submit_command(cmd: str, script: str) -> SubmitCommand:
    """Return what a job's ``cmd`` asks for.

    :param script: the job's ``sbatch_script``
    :raises ValueError: if a quote is open, the script gets arguments, or a shell would compute an option
    """
    words = _words(cmd)
    if not words or words[0].rsplit("/", 1)[-1] != "sbatch" or _has_operator(cmd):
        return SubmitCommand(words or (cmd,))
    rest = words[1:]
    if script in rest:
        place = rest.index(script)
        options, after, names_script = rest[:place], rest[place + 1 :], True
        if after:
            raise ValueError(
                f"cmd gives the script the arguments {' '.join(after)!r}; write options before the script, and "
                "arguments into the template"
            )
    else:
        if " " in script and script in cmd:
            raise ValueError(
                f"cmd does not quote the blank in sbatch_script {script!r}; write sbatch '{{sbatch_script}}'"
            )
        named = bool(rest) and not rest[-1].startswith("-")
        options = rest[:-1] if named else rest
        names_script = named and posixpath.normpath(rest[-1]) == posixpath.normpath(script)
    options = options[:-1] if options[-1:] == ("--",) else options
    computed = next((option for option in options if _COMPUTED.search(option)), None)
    if computed is not None:
        raise ValueError(
            f"cmd has {computed!r}, which a shell would compute; write the value, or ${{oc.env:NAME}}"
        )
    return SubmitCommand(words, options, True, names_script)


def options_left_out(cmd: str, script: str) -> tuple[str, ...]:
    """Return what a command that is not one call of sbatch gives sbatch before the script.

    :param script: the job's ``sbatch_script``
    """
    found: list[str] = []
    is_call = False
    for word in _tokens(cmd):
        if not word.strip(_SHELL_SIGNS) or word == script:
            is_call = False
        elif is_call:
            found.append(word)
        elif word.rsplit("/", 1)[-1] == "sbatch":
            is_call = True
        elif " " in word and "sbatch " in word and len(word) < len(cmd):  # bash -c 'sbatch …'
            found += options_left_out(word, script)
    return tuple(word for word in found if word != "--")


def _tokens(cmd: str) -> list[str]:
    """Return words and operators of a command; of one with an open quote, only its words."""
    lexer = shlex.shlex(cmd, posix=True, punctuation_chars=_SHELL_SIGNS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        return list(lexer)
    except ValueError:
        return cmd.split()


def _words(cmd: str) -> tuple[str, ...]:
    if not _QUOTING.search(cmd):  # most commands; shlex takes 50 times as long
        return tuple(cmd.split())
    try:
        return tuple(shlex.split(cmd))
    except ValueError as error:
        raise ValueError(f"cmd {cmd!r} is no command: {str(error).lower()}") from error


def _has_operator(cmd: str) -> bool:
    """Return whether a command holds what makes a shell do more than start one program."""
    if not _OPERATORS.search(cmd):
        return False
    if _COMPUTED.search(cmd):
        return bool(_OPERATORS.search(_COMPUTED.split(cmd, maxsplit=1)[0]))
    return any(token and not token.strip(_SHELL_SIGNS) for token in _tokens(cmd))
