"""sbatch's options as it reads them itself, and those that jobs may not set because the submission needs them.

The table is that of sbatch 22.05 with the options that later releases add; getopt_long(3) takes any beginning of a long
name that only one name has, and short options together. An unknown option may be a site's plugin's, and passes.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_megatron.spec.documents.errors import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DIRECTIVE: Final = "#SBATCH"
_BLANKS: Final = " \t\n\v\f\r"
#: printable ASCII without what quotes, escapes and comments are made of
_PLAIN_WORDS: Final = re.compile(r"[ \t!$-&(-\[\]-~]*")
_WITHOUT_VALUE: Final = frozenset(
    [
        "contiguous",
        "external",
        "help",
        "hold",
        "ignore-pbs",
        "no-requeue",
        "overcommit",
        "oversubscribe",
        "parsable",
        "quiet",
        "reboot",
        "requeue",
        "resv-ports",
        "spread-job",
        "stepmgr",
        "test-only",
        "usage",
        "use-min-nodes",
        "verbose",
        "version",
        "wait",
    ]
)
_WITH_VALUE: Final = frozenset(
    [
        "account",
        "acctg-freq",
        "array",
        "batch",
        "bb",
        "bbf",
        "begin",
        "chdir",
        "cluster",
        "cluster-constraint",
        "clusters",
        "comment",
        "constraint",
        "container",
        "container-id",
        "context",
        "core-spec",
        "cores-per-socket",
        "cpu-freq",
        "cpus-per-gpu",
        "cpus-per-task",
        "deadline",
        "delay-boot",
        "dependency",
        "distribution",
        "error",
        "exclude",
        "export",
        "export-file",
        "extra",
        "extra-node-info",
        "gid",
        "gpu-bind",
        "gpu-freq",
        "gpus",
        "gpus-per-node",
        "gpus-per-socket",
        "gpus-per-task",
        "gres",
        "gres-flags",
        "hint",
        "input",
        "job-name",
        "kill-on-invalid-dep",
        "licenses",
        "mail-type",
        "mail-user",
        "mcs-label",
        "mem",
        "mem-bind",
        "mem-per-cpu",
        "mem-per-gpu",
        "mincpus",
        "network",
        "nodefile",
        "nodelist",
        "nodes",
        "ntasks",
        "ntasks-per-core",
        "ntasks-per-gpu",
        "ntasks-per-node",
        "ntasks-per-socket",
        "ntasks-per-tres",
        "open-mode",
        "output",
        "partition",
        "power",
        "prefer",
        "priority",
        "profile",
        "qos",
        "reservation",
        "segment",
        "signal",
        "sockets-per-node",
        "switches",
        "tasks-per-node",
        "thread-spec",
        "threads-per-core",
        "time",
        "time-min",
        "tmp",
        "tres-bind",
        "tres-per-task",
        "uid",
        "wait-all-nodes",
        "wckey",
        "wrap",
    ]
)
_MAYBE_WITH_VALUE: Final = frozenset(
    ["consolidate-segments", "exclusive", "get-user-env", "nice", "no-kill", "oom-kill-step", "propagate"]
)
_LONG: Final = _WITHOUT_VALUE | _WITH_VALUE | _MAYBE_WITH_VALUE
_SHORT: Final[Mapping[str, str]] = {
    **{
        "a": "array",
        "b": "begin",
        "c": "cpus-per-task",
        "d": "dependency",
        "e": "error",
        "h": "help",
        "i": "input",
    },
    **{"k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition", "q": "qos"},
    **{"s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude", "A": "account"},
    **{"B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "H": "hold"},
    **{"J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet"},
    **{"S": "core-spec", "V": "version", "W": "wait"},
}

_OF_PLUGINS: Final = ("container-", "no-container-")  # of pyxis
_ALIKE: Final = 0.8

SEPARATORS: Final = frozenset({":", "hetjob", "packjob"})
"""Words between the parts of a heterogeneous job."""

NO_OPTION: Final = "--"
"""Name of a refused word that is no option."""

REPLACED: Final = frozenset({"job-name", "output", "error", "open-mode", "chdir", "comment", "parsable"})
"""Options of a user's own script that give way to the submission's."""

_IN_ANY_SCRIPT: Final[Mapping[str, str]] = {
    "array": "one job is submitted for each attempt; array: of a stage submits a job array",
    "clusters": "the cluster is chosen by its profile: cluster: NAME",
    "cluster": "the cluster is chosen by its profile: cluster: NAME",
    "dependency": "what a job waits for is declared by parent: and start:",
    "help": "nothing would be submitted",
    "hold": "a job that waits is not submitted yet: start:",
    "input": "the script does not read its standard input",
    "quiet": "the job's id would not be printed",
    "test-only": "nothing would be submitted; use airflow-megatron lint",
    "usage": "nothing would be submitted",
    "version": "nothing would be submitted",
    "wait": "jobs are followed without it",
    "wrap": "the script is rendered from command:",
}
_IN_RENDERED: Final[Mapping[str, str]] = {
    **_IN_ANY_SCRIPT,
    "chdir": "a job starts in its run directory; use cd in the command",
    "error": "both streams go to the log that is followed",
    "export": "variables are set by env:",
    "export-file": "variables are set by env:",
    "get-user-env": "variables are set by env:",
    "job-name": "it identifies the attempt",
    "open-mode": "the log is followed as it grows",
    "output": "the log is followed where the submission puts it",
    "parsable": "the submission reads what sbatch prints",
    "signal": "write signal_before: in slurm:",
}


@dataclass(frozen=True)
class SbatchOption:
    """One option as sbatch reads it.

    :param name: its long name; as written where it is unknown or ambiguous
    :param meant: the long names that it may stand for: one, none when unknown, several when ambiguous
    :param words: the words that it is made of, with its value
    :param value: its value, None without one
    """

    name: str
    meant: tuple[str, ...]
    words: tuple[str, ...]
    value: str | None = None


@dataclass(frozen=True)
class RefusedOption:
    """An option that a job may not set.

    :param text: as written
    :param name: its long name, :data:`NO_OPTION` for a word that is none
    :param instead: why, or what to write instead
    """

    text: str
    name: str
    instead: str


def split_directive(text: str) -> list[str]:
    """Return the words behind ``#SBATCH``; a comment ends them, as for sbatch."""
    if _PLAIN_WORDS.fullmatch(text):  # most of them; shlex takes 50 times as long
        return text.split()
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # a lone quote: sbatch takes the words as they are
        return text.split()


def read_options(words: Iterable[str]) -> Iterator[SbatchOption]:
    """Yield the options among the words of a command line, words that are none under their own text."""
    rest = iter(words)
    for word in rest:
        if word.startswith("--") and len(word) > 2:
            yield _long_option(word, rest)
        elif word.startswith("-") and len(word) > 1 and word != "--":
            yield from _short_options(word, rest)
        else:
            yield SbatchOption(word, (), (word,))


def _long_option(word: str, rest: Iterator[str]) -> SbatchOption:
    written, equals, value = word[2:].partition("=")
    meant = (
        (written,) if written in _LONG else tuple(sorted(name for name in _LONG if name.startswith(written)))
    )
    name = meant[0] if len(meant) == 1 else word
    if equals or name not in _WITH_VALUE:
        return SbatchOption(name, meant, (word,), value if equals else None)
    following = next(rest, None)
    return SbatchOption(name, meant, (word,) if following is None else (word, following), following)


def _short_options(word: str, rest: Iterator[str]) -> Iterator[SbatchOption]:
    for index, letter in enumerate(word[1:], 1):
        name = _SHORT.get(letter, "")
        if name not in _WITH_VALUE:
            yield SbatchOption(name or f"-{letter}", (name,) if name else (), (f"-{letter}",))
            continue
        value = word[index + 1 :] or next(rest, None)
        yield SbatchOption(name, (name,), (f"-{letter}",) if value is None else (f"-{letter}", value), value)
        return


def refused_options(words: Sequence[str], *, own_script: bool = False) -> list[RefusedOption]:
    """Return the options that would take the submission out of our hands.

    :param words: of a command line
    :param own_script: they belong to a user's own script, in which :data:`REPLACED` options give way in silence
    """
    owned = _IN_ANY_SCRIPT if own_script else _IN_RENDERED
    refused = []
    may_be_value, before = False, ""
    for option in read_options(words):
        text = " ".join(option.words)
        name = next((name for name in option.meant if name in owned), None)
        if text in SEPARATORS:
            refused.append(RefusedOption(text, text, "jobs of several parts are not followed"))
        elif option.name == "--" or not (text.startswith("-") or may_be_value):
            given = (
                f"write {before}={text}" if before else "options begin with -; the script is the job's own"
            )
            refused.append(RefusedOption(text, NO_OPTION, given))
        elif name is not None and not (own_script and _is_harmless(option)):
            refused.append(RefusedOption(text, name, owned[name]))
        # an option of a plugin may take the next word as its value
        may_be_value = not option.meant and text.startswith("--") and "=" not in text
        before = text if option.name in _MAYBE_WITH_VALUE and option.value is None else ""
    return refused


def _is_harmless(option: SbatchOption) -> bool:
    """Return whether an option says what every submission says."""
    return (option.name, option.value) == ("dependency", "singleton")


def misspelt_option(option: SbatchOption) -> str:
    """Return the option that an unknown one is like, as a question; empty for one that a plugin may have added."""
    word = option.words[0]
    written = word.removeprefix("--").partition("=")[0]
    if option.meant or not word.startswith("--") or written.startswith(_OF_PLUGINS):
        return ""
    return did_you_mean(written, _LONG, limit=1, alike=_ALIKE)


def kept_directive(text: str) -> str:
    """Return what stands behind ``#SBATCH`` without the :data:`REPLACED` options, empty when nothing is left."""
    options = list(read_options(split_directive(text)))
    kept = [option for option in options if not REPLACED.intersection(option.meant)]
    if len(kept) == len(options):
        return text.strip()
    return shlex.join(word for option in kept for word in option.words)


def script_lines(script: str) -> list[str]:
    """Return the lines of a script: a form feed or U+2028 ends none, as for the shell."""
    lines = script.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def head_length(lines: Sequence[str]) -> int:
    """Return how many lines sbatch looks at for options: those before the first command.

    ``_opt_batch_script`` (``src/sbatch/opt.c``, Slurm 22.05): a line of blanks is passed over, and so is one whose
    first character after blanks is ``#``; blanks are those of C's ``isspace``.
    """
    commands = (number for number, line in enumerate(lines) if line.lstrip(_BLANKS)[:1] not in ("", "#"))
    return next(commands, len(lines))


def head_directives(script: str) -> list[str]:
    """Return what stands behind ``#SBATCH`` in the lines that sbatch looks at."""
    lines = script_lines(script)
    head = lines[: head_length(lines)]
    return [line.removeprefix(DIRECTIVE) for line in head if line.startswith(DIRECTIVE)]


def directive_options(script: str) -> list[str]:
    """Return the words of all ``#SBATCH`` lines that sbatch reads of a script."""
    return [word for text in head_directives(script) for word in split_directive(text)]


def other_directives(script: str) -> list[str]:
    """Return the lines of a script that hold options in the words of PBS or LSF.

    sbatch would read them, all through the script, unless it is called with ``--ignore-pbs``, as it is here.
    """
    return [line for line in script_lines(script) if line.startswith(("#PBS", "#BSUB"))]
