"""Run the components of the local Airflow: ``python -m airflow_megatron.cli.local.airflow_components``.

``airflow standalone`` starts the same commands, but before that it imports Airflow and compares the database with all
migrations, which takes seconds. As there, the components go on if one of them ends, and each line of their output
begins with the name of its component.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Final

COMPONENTS: Final = ("scheduler", "dag-processor", "api-server", "triggerer")
"""Commands of Airflow."""


def main() -> None:
    """Start all components, and return when all have ended.

    This process ignores SIGTERM, which may go to the whole process group: a component that logs its end into a pipe
    without a reader fails there, and goes on.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # SIG_IGN would be inherited by the components
    threads = [threading.Thread(target=_run, args=(name,)) for name in COMPONENTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _run(name: str) -> None:
    """Run a component, and copy its output."""
    prefix = f"{name:13} | ".encode()
    with subprocess.Popen(
        [sys.executable, "-m", "airflow", name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            with suppress(OSError):  # on a full disk lines are lost, but the components go on
                os.write(sys.stdout.fileno(), prefix + line)  # one call, so that lines are not mixed


if __name__ == "__main__":
    main()
