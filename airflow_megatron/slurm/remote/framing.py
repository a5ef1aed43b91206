"""The frame around every remote script: a clean environment before, marker lines around the answer."""

from __future__ import annotations

import hashlib
import re
import string

from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

BEGIN = "=== airflow-megatron answer begins ==="
END = "=== airflow-megatron answer ends ==="

# A line that begins with a part of the delimiter and goes on with a byte above 127 loses that byte in dash 0.5.12.
_HAZARD = re.compile(r"^([A-Za-z])[A-Za-z0-9_]*[^\x00-\x7f]", re.MULTILINE)

# Site profiles export options for Slurm's commands (SBATCH_ACCOUNT, SQUEUE_FORMAT, SLURM_TIME_FORMAT …): they
# override what the scripts and job files say. SLURM_CONF and SLURM_CLUSTERS choose the cluster and stay.


def framed(body: str) -> str:
    """Return the whole script around *body*, which prints the answer line by line.

    Everything is one function called by the last line, so a script whose transmission was cut off does
    nothing.
    """
    return (
        f"am_main() {{\n{shell_file('environment')}\nprintf '\\n%s\\n' '{BEGIN}'\n"
        f"{body.strip()}\nprintf '\\n%s\\n' '{END}'\n}}\nam_main\n"
    )


def unframed(result: CommandResult) -> list[str]:
    """Return the lines of an answer without what login profiles printed around it.

    :raises TransportError: if the answer is not whole.
    """
    # at line feeds alone: str.splitlines() also ends a line at a form feed or U+2028, which names of files may hold
    lines = result.stdout.split("\n")
    try:
        begin = lines.index(BEGIN)
        end = len(lines) - 1 - lines[::-1].index(END)
    except ValueError:
        last = next((line for line in reversed(result.stderr.split("\n")) if line.strip()), "no message")
        raise TransportError(
            f"the login node's answer is cut off (shell exit status {result.exit_status}: {last.strip()})"
        ) from None
    # Each marker is printed after an extra line break, in case the text before lacks one.
    answer = lines[begin + 1 : end]
    if answer and not answer[-1]:
        answer.pop()
    return answer


def here_document(text: str) -> str:
    """Return the redirection and body of a here-document that holds *text* literally, ending in a line break.

    :param text: without NUL; a missing last line break is added.
    :raises ValueError: if words that go on with a byte above 127 begin its lines with every letter there is.
    """
    body = text if text.endswith("\n") else f"{text}\n"
    hazards = set(_HAZARD.findall(body))
    first = next(
        (letter for letter in string.ascii_uppercase + string.ascii_lowercase if letter not in hazards), None
    )
    if first is None:
        raise ValueError("the text cannot be sent as a here-document: begin one of its lines with a blank")
    delimiter = f"{first}M_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    return f"<<'{delimiter}'\n{body}{delimiter}\n"
