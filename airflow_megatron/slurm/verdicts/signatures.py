"""The catalogue of log lines that show why a job ended; sites can extend it.

The shipped catalogue is ``signatures.yaml`` beside this module; its comments describe the fields of an entry.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import re2

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.torchrun_report import attributed, root_cause
from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.project import clusters_dir
from airflow_megatron.spec.documents.yaml_document import load_yaml_file, load_yaml_text
from airflow_megatron.spec.trust.patterns import log_lines
from airflow_megatron.spec.trust.plain_text import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_megatron.spec.documents.yaml_document import YamlDocument

SHIPPED_FILE: Final = Path(__file__).with_name("signatures.yaml")

_OUTCOMES: Final = (Outcome.ROLLED_OVER, Outcome.RETRYABLE, Outcome.OUT_OF_MEMORY, Outcome.FAILED)
_DEFAULT_STATES: Final = frozenset({JobState.FAILED, JobState.COMPLETED})
_FLAGS: Final = ("permanent", "generic", "echo", "blames_node", "rollback", "while_loading")
_KEYS: Final = ("name", "pattern", "unless", "outcome", "reason", "states", "exit_codes", *_FLAGS)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_LAUNCHER_PREFIX: Final = re.compile(rb"\s{0,64}\[([A-Za-z][A-Za-z0-9._-]{0,80}):\d{1,9}\]:")
_LOADING: Final = re.compile(rb"loading (?:distributed )?checkpoint from ")
_LOADED: Final = (b"successfully loaded checkpoint", b"timers/load-checkpoint took")
_AT_ITERATION: Final = b" at iteration "
_ITERATION: Final = re.compile(rb"\d{1,18}")
_LONGEST_LINE: Final = 4096
"""Maximum number of bytes of a line that are searched; progress bars write very long lines."""
_EXCEPTION: Final = "exception"
_CHILD_FAILED: Final = "child_failed"
"""Signatures that match torchrun's own report of a failure."""


Pattern: TypeAlias = Any
"""A compiled pattern of re2; the time of a search grows only with the length of the text."""


_PATTERN_HINT: Final = "quote it with '…'; look-around and back-references are not known (RE2's syntax)"


def line_pattern(text: str) -> Pattern:
    """Compile a pattern for a search in single lines of a log or in several lines at once.

    :raises ValueError: if it is not a regular expression of RE2.
    """
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # a log is bytes
    options.never_nl = True
    options.log_errors = False
    pattern = text.encode()
    try:
        re2.compile(pattern, options)  # alone, so that errors quote what is written
        return re2.compile(b"(?m)(?:" + pattern + b")", options)
    except re2.error as error:
        reason = error.args[0]
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else reason) from None


@dataclass(frozen=True)
class Signature:
    """What a log line means; the fields are those of ``signatures.yaml``."""

    name: str
    pattern: Pattern
    outcome: Outcome
    reason: str
    states: frozenset[JobState] = _DEFAULT_STATES
    exit_codes: frozenset[int] = frozenset()
    permanent: bool = False
    generic: bool = False
    echo: bool = False
    blames_node: bool = False
    rollback: bool = False
    while_loading: bool = False
    unless: Pattern | None = None

    def match(self, line: bytes) -> Any:
        """Return the match of the signature in a line, None if there is none."""
        found = self.pattern.search(line)
        return None if found is None or (self.unless is not None and self.unless.search(line)) else found


@dataclass(frozen=True)
class SignatureMatch:
    """A signature found in a log.

    :param line: the last matching line, as text.
    :param node: the failed node that the line names, None if it names none.
    :param iteration: iteration of the checkpoint that the line reports as damaged.
    """

    signature: Signature
    line: str
    node: str | None = None
    iteration: int | None = None


def find_signature(
    signatures: Iterable[Signature],
    log_tail: bytes,
    state: JobState,
    exit_code: int | None = None,
    *,
    generic: bool | None = None,
) -> SignatureMatch | None:
    """Return the first signature that matches a line of *log_tail*.

    :param signatures: in order of precedence.
    :param log_tail: the last part of a log.
    :param state: Slurm's state of the job; signatures for other states are ignored.
    :param exit_code: of the job's script, None if unknown; signatures for other exit codes are ignored.
    :param generic: True searches only generic signatures, False only the others, None all.
    """
    wanted = [
        signature
        for signature in signatures
        if state in signature.states
        and (generic is None or signature.generic is generic)
        and (exit_code is None or not signature.exit_codes or exit_code in signature.exit_codes)
    ]
    if not wanted:
        return None
    lines = [line[:_LONGEST_LINE].rstrip() for line in log_lines(log_tail) if line]
    loading = _loading_iteration(line for line in lines if b"checkpoint" in line)
    cause = root_cause(lines)
    if cause is None:
        return _first(wanted, lines, loading)
    written = attributed(lines, cause)
    known = cause.signal or written.exception or cause.last_line
    specific = [signature for signature in wanted if not signature.generic]
    found = _first(specific, written.own, loading) or _first(
        [signature for signature in specific if not (known and signature.echo)], written.common, loading
    )
    if found is not None:
        return found
    if not known and (found := _first(specific, lines, loading)) is not None:
        return found
    name = _EXCEPTION if written.exception else _CHILD_FAILED
    for signature in wanted:
        if signature.generic and signature.name == name:
            shown = harmless(written.exception or cause.last_line).strip()
            reason = f"{cause.text}, the first to fail"
            return SignatureMatch(replace(signature, reason=reason), shown or cause.text)
    return _first([signature for signature in wanted if signature.generic], lines, loading)


def _first(
    signatures: Iterable[Signature], lines: Sequence[bytes], loading: int | None
) -> SignatureMatch | None:
    """Return the first signature that matches a line, with the last matching line."""
    whole = b"\n".join(lines)  # one search in the whole text is much faster than a search in each line
    for signature in signatures:
        if (signature.while_loading and loading is None) or signature.pattern.search(whole) is None:
            continue
        for line in reversed(lines):
            match = signature.match(line)
            if match is not None:
                return _finding(signature, line, match, loading)
    return None


def _loading_iteration(lines: Iterable[bytes]) -> int | None:
    """Return the iteration of the checkpoint that the job started to load and did not finish loading.

    Megatron logs the start and the end (``megatron/training/checkpointing.py`` ``load_checkpoint``, all releases);
    Megatron-DeepSpeed logs the end (``megatron/training.py``), and the job's script logs the start.
    """
    iteration = None
    for line in lines:
        if (begun := _LOADING.search(line)) is not None:
            stands = line.rfind(_AT_ITERATION, begun.end())
            number = _ITERATION.match(line, stands + len(_AT_ITERATION)) if stands >= 0 else None
            iteration = int(number.group()) if number else iteration
        if any(words in line for words in _LOADED):
            iteration = None
    return iteration


def _finding(signature: Signature, line: bytes, match: Any, loading: int | None) -> SignatureMatch:
    groups = {
        name.decode(): text for name, text in match.groupdict().items()
    }  # re2 returns group names in the encoding of the pattern
    node = groups.get("node")
    if node is None and signature.blames_node and (prefix := _LAUNCHER_PREFIX.match(line)):
        node = prefix.group(1)
    named = groups.get("iteration") or groups.get("iteration2")
    if named and _ITERATION.fullmatch(named) is None:
        named = None
    iteration = int(named) if named else loading if signature.while_loading else None
    return SignatureMatch(
        signature,
        harmless(line).strip(),
        node.decode(errors="replace") if node else None,
        iteration,
    )


@cache
def shipped_signatures() -> tuple[Signature, ...]:
    """Return the catalogue of this package."""
    return tuple(read_signatures(SHIPPED_FILE))


def catalogue(site_files: Sequence[Path] = ()) -> tuple[Signature, ...]:
    """Return the catalogue of a site: the site's signatures, followed by the shipped ones.

    :param site_files: files in the format of the shipped file; earlier files have precedence, and a signature replaces
        signatures of the same name in later files and in the shipped catalogue.
    :raises SpecError: with file and line of the error.
    """
    return _before_shipped(read_signatures(path) for path in site_files)


def pinned_catalogue(texts: Mapping[str, str]) -> tuple[Signature, ...]:
    """Return the catalogue of a site from the content of its files.

    :param texts: file name → content, in the order of the cluster profile.
    :raises SpecError: with file and line of the error.
    """
    return _before_shipped(_signatures(load_yaml_text(text, name)) for name, text in texts.items())


def _before_shipped(files: Iterable[Iterable[Signature]]) -> tuple[Signature, ...]:
    found: dict[str, Signature] = {}
    for signature in itertools.chain(*files, shipped_signatures()):
        found.setdefault(signature.name, signature)
    return tuple(found.values())


def site_catalogue(names: Sequence[str]) -> tuple[Signature, ...]:
    """Return the catalogue of the site whose cluster profile names these files.

    :param names: paths relative to the folder of the cluster profiles, so that they are valid on other machines too.
    :raises SpecError: with file and line of the error.
    """
    return catalogue([clusters_dir() / name for name in names]) if names else shipped_signatures()


def read_signatures(path: Path) -> list[Signature]:
    """Read a file of signatures.

    :raises SpecError: with file, line and hint of each error.
    """
    return _signatures(load_yaml_file(path))


def _signatures(document: YamlDocument) -> list[Signature]:
    data = document.data
    if not isinstance(data, dict) or list(data) != ["signatures"] or not isinstance(data["signatures"], list):
        raise SpecError(
            document.problem((), "a file of signatures has one key, with a list", "write signatures: […]")
        )
    problems: list[Problem] = []
    found: list[Signature] = []
    names: set[str] = set()
    for index, entry in enumerate(data["signatures"]):
        try:
            signature = _signature(entry, ("signatures", index), document)
        except SpecError as error:
            problems += error.problems
            continue
        if signature.name in names:
            problems.append(
                document.problem(("signatures", index), f"{signature.name!r} is listed twice", "rename one")
            )
        names.add(signature.name)
        found.append(signature)
    if problems:
        raise SpecError(problems)
    return found


def _signature(entry: Any, at: tuple[str | int, ...], document: YamlDocument) -> Signature:
    def wrong(key: str, message: str, hint: str) -> SpecError:
        place = (*at, key) if isinstance(entry, dict) and key in entry else at
        return SpecError(document.problem(place, message, hint))

    if not isinstance(entry, dict):
        raise wrong("", "a signature is a mapping", "write name, pattern, outcome and reason")
    for key in entry:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS) or f"known here: {', '.join(_KEYS)}"
            raise wrong(str(key), f"unknown key {key!r}", hint)
    for key in ("name", "pattern", "outcome", "reason"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise wrong(key, f"{key!r} has to be text", f"write {key}: '…'")
    for key in _FLAGS:
        if not isinstance(entry.get(key, False), bool):
            raise wrong(key, f"{key!r} is {entry[key]!r}", "write true or false")
    if not _NAME.fullmatch(entry["name"]):
        raise wrong("name", f"name is {entry['name']!r}", "use lower-case letters, digits and '_'")
    try:
        outcome = Outcome(entry["outcome"])
    except ValueError:
        outcome = Outcome.UNKNOWN
    if outcome not in _OUTCOMES:
        raise wrong("outcome", f"outcome is {entry['outcome']!r}", f"one of {', '.join(_OUTCOMES)}")
    patterns: dict[str, Pattern] = {}
    for key in ("pattern", "unless"):
        try:
            if key in entry:
                patterns[key] = line_pattern(entry[key])
        except (TypeError, AttributeError, ValueError) as error:
            raise wrong(key, f"the pattern is not a regular expression: {error}", _PATTERN_HINT) from None
    pattern = patterns["pattern"]
    if pattern.search(b""):
        raise wrong(
            "pattern", "the pattern matches an empty line, and therefore every log", "make it say something"
        )
    states = entry.get("states", [state.value for state in _DEFAULT_STATES])
    known = [state.value for state in JobState if state.ended]
    if not isinstance(states, list) or not states or not all(state in known for state in states):
        raise wrong("states", f"states is {states!r}", f"a list of {', '.join(known)}")
    codes = entry.get("exit_codes", [])
    if not isinstance(codes, list) or not all(type(code) is int and 0 < code < 256 for code in codes):
        raise wrong("exit_codes", f"exit_codes is {codes!r}", "a list of numbers from 1 to 255")
    return Signature(
        name=entry["name"],
        pattern=pattern,
        outcome=outcome,
        reason=entry["reason"].strip(),
        states=frozenset(JobState(state) for state in states),
        exit_codes=frozenset(codes),
        permanent=entry.get("permanent", False),
        generic=entry.get("generic", False),
        blames_node=entry.get("blames_node", False),
        rollback=entry.get("rollback", False),
        while_loading=entry.get("while_loading", False),
        echo=entry.get("echo", False),
        unless=patterns.get("unless"),
    )
