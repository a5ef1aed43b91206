"""Megatron-DeepSpeed's log lines, rewritten in Megatron-LM's wording.

argonne-lcf/Megatron-DeepSpeed prints through ``logging``, in colour on demand, with fields like ``lm loss=4.851900 |``
(``megatron/training_log.py``, ``megatron/training.py``) where Megatron-LM has ``lm loss: 4.851900E+00 |``. Lines with
the same wording (checkpoints, memory, parameters) are unchanged. The lines of older forks of Megatron-DeepSpeed are
Megatron-LM's; bigscience-workshop/Megatron-DeepSpeed prints seconds in them.
"""

from __future__ import annotations

import re

_COLOUR = re.compile(rb"\x1b\[[0-9;]{0,64}m")
_TIME = re.compile(rb"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:,(?P<fraction>\d{1,9}))?\]")
_ITERATION = re.compile(rb"\biteration=")
_SAMPLES = re.compile(rb"\bconsumed_samples=")
_VALUE = re.compile(rb"[^ =|]+ ?")
_VALIDATION = re.compile(
    rb"(?P<head>validation loss at iteration {1,16}\d{1,18} on)(?: \d{1,18}-sample draw from)?"
    rb"(?P<set> (?:validation|test) set) \|"
)
_LOSS = re.compile(rb" (?:value|PPL)(?P<is>=)(?P<number>-?(?:\d{1,18}\.\d{1,18}|nan|inf))")
_NO_NAME = re.compile(rb".*[^\w ]", re.DOTALL)
_PARAMETERS = re.compile(rb"(number of parameters on [^\n=]{0,200}\))=(\d)")
_MILLISECONDS = b"elapsed time per iteration ms"
_SECONDS = re.compile(rb"elapsed time per iteration \(s\): {0,16}(\d{1,9}(?:\.\d{1,18})?) \|")
# Every expression takes time in proportion to the line: what repeats is bounded or cannot match in two ways.


def in_megatrons_words(block: bytes) -> bytes:
    """Rewrite the lines in the wording of Megatron-DeepSpeed; other bytes are unchanged.

    :param block: whole lines.
    """
    if b"\x1b[" in block:
        block = _COLOUR.sub(b"", block)
    if b" consumed_samples=" in block or b" value=" in block:
        # one expression over the complete text would take three times as long
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
        line = _iteration(line)
    if b"validation loss at " in line:
        line = _losses(_VALIDATION.sub(rb"\g<head>\g<set> |", line))
    return line


def _iteration(line: bytes) -> bytes:
    for word in _ITERATION.finditer(line):
        bar = line.find(b"|", word.end())
        if bar < 0:
            break
        if _SAMPLES.search(line, bar) is None:
            continue
        begin = line.rfind(b"|", 0, word.start()) + 1
        time, stamp = b"", _TIME.search(line, begin, word.start())
        if stamp is not None:
            fraction = b"." + stamp["fraction"] if stamp["fraction"] else b""
            time, begin = b"[" + stamp["time"] + fraction + b"] ", stamp.start()
        else:
            begin = word.start()
        fields = b"|".join(map(_field, line[bar + 1 :].split(b"|")))
        return b"%s%siteration %s|%s" % (line[:begin], time, line[word.end() : bar], fields)
    return line


def _field(part: bytes) -> bytes:
    """Rewrite `` lm_loss=4.85 ``; other parts are unchanged."""
    before, blank, named = part.partition(b" ")
    name, _, value = named.partition(b"=")
    value = value.lstrip(b" ")
    if not blank or not name or _VALUE.fullmatch(value) is None:
        return part
    name = name.replace(b"_", b" ")
    if name == _MILLISECONDS:
        name = b"elapsed time per iteration (ms)"
    return b"%s %s: %s" % (before, name, value)


def _losses(line: bytes) -> bytes:
    """Rewrite ``lm loss value=4.85lm loss PPL=128.9``."""
    parts: list[bytes] = []
    at = 0
    for loss in _LOSS.finditer(line):
        between = line[at : loss.start()]
        unnamed = _NO_NAME.match(between)
        cut = unnamed.end() if unnamed else 0
        name = between[cut:] + line[loss.start() : loss.start("is")]
        parts.append(b"%s %s: %s |" % (between[:cut], name.strip(), loss["number"]))
        at = loss.end()
    return b"".join((*parts, line[at:]))


def _in_milliseconds(match: re.Match[bytes]) -> bytes:
    return b"elapsed time per iteration (ms): %.1f |" % (1000 * float(match[1]))
