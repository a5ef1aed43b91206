"""Megatron-DeepSpeed's log lines, rewritten in Megatron-LM's wording.

argonne-lcf/Megatron-DeepSpeed prints through ``logging``, in colour on demand, with fields like ``lm loss=4.851900 |``
(``megatron/training_log.py``, ``megatron/training.py``) where Megatron-LM has ``lm loss: 4.851900E+00 |``. What both
say in the same words (checkpoints, memory, parameters) stays as it is. The lines of older forks of Megatron-DeepSpeed
are Megatron-LM's; bigscience-workshop/Megatron-DeepSpeed tells seconds in them.
"""

from __future__ import annotations

import re

_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
_ITERATION = re.compile(
    rb"(?:\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,(?P<fraction>\d+))?\][^\n|]*?)?\biteration=(?P<of>[^\n|]*)\|"
    rb"(?P<fields>[^\n]*?\bconsumed_samples=[^\n]*)"
)
_FIELD = re.compile(rb" ([^=|]+)=( *[^ =|]+ ?\|)")
_VALIDATION = re.compile(
    rb"(?P<head>validation loss at iteration +\d+(?: on))(?: \d+-sample draw from)?(?P<set> (?:validation|test) set) \|"
    rb"|(?P<value>[\w ]+ (?:value|PPL))=(?P<number>-?(?:\d+\.\d+|nan|inf))"
)
_PARAMETERS = re.compile(rb"(number of parameters on [^\n=]*\))=(\d)")
_MILLISECONDS = b"elapsed time per iteration ms"
_SECONDS = re.compile(rb"elapsed time per iteration \(s\): *(\d+(?:\.\d+)?) \|")


def in_megatrons_words(block: bytes) -> bytes:
    """Rewrite the lines that only Megatron-DeepSpeed words so; other bytes stay as they are.

    :param block: whole lines.
    """
    if b"\x1b[" in block:
        block = _COLOUR.sub(b"", block)
    if b" consumed_samples=" in block or b" value=" in block:
        # an expression over all of the text would take three times as long
        block = b"\n".join(map(_line, block.split(b"\n")))
    if b" per iteration (s): " in block:
        block = _SECONDS.sub(_in_milliseconds, block)
    if b"] datetime=" in block:
        block = block.replace(b"] datetime=", b"] datetime: ")
    if b" model parallel rank (" in block:
        block = _PARAMETERS.sub(rb"\1: \2", block)
    return block


def _line(line: bytes) -> bytes:
    if b" consumed_samples=" in line:
        line = _ITERATION.sub(_iteration, line)
    if b"validation loss at " in line:
        line = _VALIDATION.sub(_validation, line)
    return line


def _iteration(match: re.Match[bytes]) -> bytes:
    time = b""
    if match["time"]:
        fraction = b"." + match["fraction"] if match["fraction"] else b""
        time = b"[" + match["time"] + fraction + b"] "
    return b"%siteration %s|%s" % (time, match["of"], _FIELD.sub(_field, match["fields"]))


def _field(match: re.Match[bytes]) -> bytes:
    name = match[1].replace(b"_", b" ")
    if name == _MILLISECONDS:
        name = b"elapsed time per iteration (ms)"
    return b" %s: %s" % (name, match[2].lstrip())


def _in_milliseconds(match: re.Match[bytes]) -> bytes:
    return b"elapsed time per iteration (ms): %.1f |" % (1000 * float(match[1]))


def _validation(match: re.Match[bytes]) -> bytes:
    if match["head"] is not None:
        return b"%s%s |" % (match["head"], match["set"])
    return b" %s: %s |" % (match["value"].strip(), match["number"])
