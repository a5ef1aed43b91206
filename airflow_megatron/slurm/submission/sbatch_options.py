"""Parse sbatch options as sbatch does, and find the options that jobs may not set because the submission sets them.

The table holds the options of sbatch 22.05 and of later releases up to 26.05. Like getopt_long(3), the parser accepts
unique prefixes of long names and combined short options. An unknown option may belong to a plugin of the site and is
accepted.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_megatron.spec.documents.errors import did_you_mean, suggestion
from airflow_megatron.spec.documents.quantities import MEMORY_SIZE, MEMORY_SIZE_TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

DIRECTIVE: Final = "#SBATCH"
_BLANKS: Final = " \t\n\v\f\r"
#: printable ASCII without the characters of quotes, escapes and comments
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
        "spread-segments",
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
        "container-type",
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
        "mem-update",
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
        "resources",
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
_NEVER_WITH_VALUE: Final = _WITHOUT_VALUE - {"requeue"}  # which Slurm 25.11 takes as --requeue=expedite
_LONG: Final = _WITHOUT_VALUE | _WITH_VALUE | _MAYBE_WITH_VALUE
_COUNT: Final = (r"[ +]*0*[1-9][0-9]*", "a number of 1 or more")
_AT_LEAST_0: Final = (r"([ +]*[0-9]+)?", "a number")
_SIZE: Final = (MEMORY_SIZE, MEMORY_SIZE_TEXT)
_NODES: Final = r"\s*[+-]?[0-9]+[km]?\s*"
_SPAN: Final = (
    r"([0-9]+-)?[0-9]+(:[0-9]+){0,2}|[0-9]+-|-[0-9]+|infinite|unlimited",
    "minutes or [days-]hours:minutes:seconds: 06:00:00",
)
_NODE_COUNT: Final = (
    rf"{_NODES}(-{_NODES}(:{_NODES})?)?(,{_NODES}(-{_NODES}(:{_NODES})?)?)*",  # steps and lists since Slurm 23.11
    "a number, or the smallest and the largest: 2 or 2-4",
)
_MOMENTS: Final = ("now", "today", "tomorrow", "midnight", "noon", "fika", "teatime")
_MOMENT: Final = (
    # words follow each other; times and dates are left to sbatch
    rf"({'|'.join(_MOMENTS)})+|.*[^a-z].*",
    f"a time: now+1hour, 16:00, 2030-01-31T16:00, {', '.join(_MOMENTS[1:])}",
)
_SPREAD: Final = r"(block|cyclic|\*)"
_INSIDE: Final = r"(block|cyclic|fcyclic|\*)"
_PROFILES: Final = ("none", "all", "energy", "task", "filesystem", "lustre", "network")
_MAILS: Final = (
    *("none", "begin", "end", "fail", "requeue", "all", "invalid_depend", "stage_out", "array_tasks"),
    *("time_limit", "time_limit_90", "time_limit_80", "time_limit_50"),
)
_MAIL: Final = f"({'|'.join(_MAILS)})?"


def _some_of(*words: str) -> tuple[str, str]:
    """Return the expression for words with commas between them, and what to write."""
    word = f"({'|'.join(words)})"
    return f"{word}(,{word})*", f"some of {', '.join(words)}, separated by commas"


_FORMS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu", "tmp"), _SIZE),
    **dict.fromkeys(("time", "time-min", "delay-boot"), _SPAN),
    **dict.fromkeys(("ntasks-per-core", "ntasks-per-node", "ntasks-per-socket", "ntasks-per-gpu"), _COUNT),
    **dict.fromkeys(("ntasks", "cpus-per-task", "cpus-per-gpu", "mincpus", "threads-per-core"), _COUNT),
    **dict.fromkeys(("sockets-per-node", "cores-per-socket", "thread-spec", "ntasks-per-tres"), _COUNT),
    **dict.fromkeys(("begin", "deadline"), _MOMENT),
    "nodes": _NODE_COUNT,
    "distribution": (
        rf"plane=[0-9]+|arbitrary|({_SPREAD}(:{_INSIDE}){{0,2}})?,?((no)?pack)?(?<=.)",
        "block, cyclic, arbitrary or plane=SIZE; for sockets and cores: block:cyclic",
    ),
    "gres-flags": _some_of(
        *("disable-binding", "enforce-binding"),
        *("multiple-tasks-per-sharing", "one-task-per-sharing", "allow-task-sharing"),  # since Slurm 23.02
    ),
    "hint": _some_of("compute_bound", "memory_bound", "multithread", "nomultithread"),
    "profile": (
        rf"(.*,)?({'|'.join(_PROFILES)})(,.*)?",
        f"some of {', '.join(_PROFILES)}, separated by commas",
    ),
    "core-spec": _AT_LEAST_0,
    "wait-all-nodes": ("([ +]*0*[01])?", "0 or 1"),
    "no-kill": ("|off|no|set", "off, or no value"),
    "segment": _AT_LEAST_0,
    "oom-kill-step": ("|0|1", "0 or 1, or no value"),
    "gpu-bind": (
        r"(verbose,)?(none|closest|(single|per_task):.+|(map|mask)(_gpu)?:.+)(,verbose)?",
        "none, closest, single:TASKS, per_task:GPUS, map:LIST or mask:LIST",
    ),
    "switches": (rf"{_COUNT[0]}(@.*)?", "a number, also with the longest wait: 1@01:00:00"),
    "kill-on-invalid-dep": ("yes|no", "yes or no"),
    "exclusive": ("|user|mcs|topo", "user, mcs or topo, or no value"),
    "mail-type": (
        f"(?=.)({_MAIL},)*{_MAIL}",
        f"some of {', '.join(_MAILS).upper()}, separated by commas",
    ),
}
"""Option → expression for its values, in small letters, and what to write. Each was tried with sbatch 22.05; new
values and options with sbatch 24.11 and 26.05. What some releases take (``topo``) counts as valid."""
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
"""Words that separate the components of a heterogeneous job."""

NO_OPTION: Final = "--"
"""Name of a refused word that is not an option."""

REPLACED: Final = frozenset({"job-name", "output", "error", "open-mode", "chdir", "comment", "parsable"})
"""Options in a user's script that the submission replaces with its own."""

_IN_ANY_SCRIPT: Final[Mapping[str, str]] = {
    "array": "one job is submitted for each attempt; array: of a stage submits a job array",
    "clusters": "the cluster is chosen by its profile: cluster: NAME",
    "cluster": "the cluster is chosen by its profile: cluster: NAME",
    "dependency": "declare dependencies with parent: and start:",
    "help": "nothing would be submitted",
    "hold": "use start: to delay the submission",
    "input": "the script does not read its standard input",
    "quiet": "the job's id would not be printed",
    "test-only": "nothing would be submitted; use airflow-megatron lint",
    "usage": "nothing would be submitted",
    "version": "nothing would be submitted",
    "wait": "the status of jobs is polled without it",
    "wrap": "the script is rendered from command:",
}
_IN_RENDERED: Final[Mapping[str, str]] = {
    **_IN_ANY_SCRIPT,
    "chdir": "a job starts in its run directory; use cd in the command",
    "error": "both streams are written to the log that is polled",
    "export": "variables are set by env:",
    "export-file": "variables are set by env:",
    "get-user-env": "variables are set by env:",
    "job-name": "it identifies the attempt",
    "open-mode": "the log is polled while it grows",
    "output": "the submission defines the path of the log",
    "parsable": "the submission reads what sbatch prints",
    "signal": "write signal_before: in slurm:",
}


class SbatchOption(NamedTuple):
    """One option as sbatch reads it.

    :param name: its long name; the text itself if unknown or ambiguous
    :param meant: matching long names: one, none if unknown, several if ambiguous
    :param words: the words of the option and its value
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
    :param name: its long name, :data:`NO_OPTION` for a word that is not an option
    :param instead: the reason, or what to write instead
    """

    text: str
    name: str
    instead: str


def split_directive(text: str) -> list[str]:
    """Split the text after ``#SBATCH`` into words, up to a comment, as sbatch does."""
    if _PLAIN_WORDS.fullmatch(text):  # sufficient for most lines; shlex takes 50 times as long
        return text.split()
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an unpaired quote: sbatch splits the text without unquoting
        return text.split()


def read_options(words: Iterable[str]) -> Iterator[SbatchOption]:
    """Yield the options of a command line; a word that is not an option has its own text as name."""
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


def refused_options(options: Iterable[SbatchOption], *, own_script: bool = False) -> list[RefusedOption]:
    """Return the options that conflict with the submission.

    :param options: of a command line (:func:`read_options`)
    :param own_script: whether they belong to a user's script, in which :data:`REPLACED` options are replaced silently
    """
    owned = _IN_ANY_SCRIPT if own_script else _IN_RENDERED
    refused = []
    may_be_value, before = False, ""
    for option in options:
        text = " ".join(option.words)
        name = next((name for name in option.meant if name in owned), None)
        if text in SEPARATORS:
            refused.append(RefusedOption(text, text, "heterogeneous jobs are not supported"))
        elif option.name == "--" or not (text.startswith("-") or may_be_value):
            given = (
                f"write {before}={text}" if before else "options begin with -; the script is the job's own"
            )
            refused.append(RefusedOption(text, NO_OPTION, given))
        elif name is not None and not (own_script and _is_harmless(option)):
            refused.append(RefusedOption(text, name, owned[name]))
        # the next word may be the value of a plugin's option
        may_be_value = not option.meant and text.startswith("--") and "=" not in text
        before = text if option.name in _MAYBE_WITH_VALUE and option.value is None else ""
    return refused


def _is_harmless(option: SbatchOption) -> bool:
    """Return whether an option has the value that every submission sets."""
    return (option.name, option.value) == ("dependency", "singleton")


def misspelt_option(option: SbatchOption) -> str:
    """Return a suggestion for a misspelt option, as a question; empty for an option that may belong to a plugin."""
    word = option.words[0]
    written = word.removeprefix("--").partition("=")[0]
    if option.meant or not word.startswith("--") or written.startswith(_OF_PLUGINS):
        return ""
    return did_you_mean(written, _LONG, limit=1, alike=_ALIKE)


def wrong_long_name(name: str) -> tuple[str, str]:
    """Return what is wrong with a word that should be the long name of an option, and what to write; empty for a name.

    A name that is unlike all of sbatch's may be that of an option of a plugin.
    """
    (option, *_) = read_options([name if name.startswith("-") else f"--{name}"])
    bare = name.lstrip("-").partition("=")[0]
    if name != bare or not bare:
        long = option.name if len(option.meant) == 1 else bare
        return (
            f"{name!r} is not the long name of an option",
            f"write {long or 'mem'}, without dashes or a value",
        )
    if name in _LONG:
        return "", ""
    known = (_SHORT[name],) if name in _SHORT else option.meant
    near = suggestion(map(repr, known)) or misspelt_option(option)
    return (f"sbatch has no option {name!r}", near) if near else ("", "")


def wrong_value(option: SbatchOption) -> str:
    """Return what to write for an option whose value sbatch refuses; empty for other options.

    Only values are examined that no site can define.
    """
    if option.name in _WITH_VALUE and option.value is None:
        return f"{option.words[0]} needs a value"
    if option.name in _NEVER_WITH_VALUE and option.value is not None:
        return f"write --{option.name}, without a value"
    form, instead = _FORMS.get(option.name, ("", ""))
    if not instead or option.value is None or re.fullmatch(form, option.value.lower()):
        return ""
    return f"write {instead}"


def kept_directive(text: str) -> str:
    """Return the text after ``#SBATCH`` without the :data:`REPLACED` options; empty if no option remains."""
    options = list(read_options(split_directive(text)))
    kept = [option for option in options if not REPLACED.intersection(option.meant)]
    if len(kept) == len(options):
        return text.strip()
    return shlex.join(word for option in kept for word in option.words)


def script_lines(script: str) -> list[str]:
    """Return the lines of a script, split only at line feeds, as by the shell (not at form feeds or U+2028)."""
    lines = script.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines[:-1] if not lines[-1] else lines


def head_length(lines: Sequence[str]) -> int:
    """Return the number of lines that sbatch searches for options: those before the first command.

    Source: ``_opt_batch_script`` (``src/sbatch/opt.c``, Slurm 22.05), which skips blank lines and lines whose first
    non-blank character is ``#``; blanks are those of C's ``isspace``.
    """
    for number, line in enumerate(lines):
        if line[:1] != "#" and line.lstrip(_BLANKS)[:1] not in ("", "#"):
            return number
    return len(lines)


def head_directives(script: str) -> list[str]:
    """Return the text after ``#SBATCH`` in the lines that sbatch reads."""
    lines = script_lines(script)
    head = lines[: head_length(lines)]
    return [line.removeprefix(DIRECTIVE) for line in head if line.startswith(DIRECTIVE)]


def directive_options(script: str) -> list[str]:
    """Return the words of all ``#SBATCH`` lines of a script that sbatch reads."""
    return [word for text in head_directives(script) for word in split_directive(text)]


def other_directives(script: str) -> list[str]:
    """Return the lines of a script with options of PBS or LSF.

    sbatch reads such lines in the whole script unless it is called with ``--ignore-pbs``, as this package does.
    """
    if "#PBS" not in script and "#BSUB" not in script:
        return []
    return [line for line in script_lines(script) if line.startswith(("#PBS", "#BSUB"))]
