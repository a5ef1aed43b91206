"""The frame of every remote script: it cleans the environment and prints marker lines around the output."""

from __future__ import annotations

import hashlib
import re
import string

from airflow_megatron.slurm.remote.shell_files import shell_file
from airflow_megatron.slurm.remote.transport import CommandResult, TransportError

BEGIN = "=== airflow-megatron answer begins ==="
END = "=== airflow-megatron answer ends ==="

# dash 0.5.12 drops a byte above 127 that follows a prefix of the delimiter at the start of a line.
_HAZARD = re.compile(r"^([A-Za-z])[A-Za-z0-9_]*[^\x00-\x7f]", re.MULTILINE)

# Site profiles export options of Slurm's commands (SBATCH_ACCOUNT, SQUEUE_FORMAT, SLURM_TIME_FORMAT …), which
# override the options in the scripts and job files. SLURM_CONF and SLURM_CLUSTERS select the cluster and are kept.


def framed(body: str) -> str:
    """Return the complete script around *body*, which prints its output line by line.

    The script is one function that the last line calls, so an incompletely transmitted script does nothing.
    """
    return (
        f"am_main() {{\n{shell_file('environment')}\nprintf '\\n%s\\n' '{BEGIN}'\n"
        f"{body.strip()}\nprintf '\\n%s\\n' '{END}'\n}}\nam_main\n"
    )


def unframed(result: CommandResult) -> list[str]:
    """Return the lines of the output between the markers, without the output of login profiles.

    :raises TransportError: if the output is incomplete.
    """
    # split at line feeds only: str.splitlines() also splits at form feeds and U+2028, which file names may contain
    lines = result.stdout.split("\n")
    try:
        begin = lines.index(BEGIN)
        end = len(lines) - 1 - lines[::-1].index(END)
    except ValueError:
        last = next((line for line in reversed(result.stderr.split("\n")) if line.strip()), "no message")
        shell = f"(shell exit status {result.exit_status}: {last.strip()})"
        if BEGIN in lines:
            raise TransportError(f"the login node's answer is cut off {shell}") from None
        raise TransportError(
            f"the login node did not run the script {shell}; if this repeats, check that no start-up file of the "
            "account, such as ~/.bashrc, ends the shell"
        ) from None
    # An extra line break precedes each marker, in case the text before it has none at its end.
    answer = lines[begin + 1 : end]
    if answer and not answer[-1]:
        answer.pop()
    return answer


def here_document(text: str) -> str:
    """Return the redirection and body of a here-document that holds *text* literally, ending in a line break.

    :param text: without NUL; a missing last line break is added.
    :raises ValueError: if no delimiter is safe, because for each letter a line starts with it and a byte above 127.
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
