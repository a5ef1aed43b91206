"""What ``make studies`` says of processor time holds the processes that others have left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import sys
from processor_time import run_counted
burn = "import time\\nwhile time.process_time() < 0.3: pass"
left = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}], start_new_session=True)"
left += "; sys.exit(3)"
status, used = run_counted([sys.executable, "-c", left])
print(status, used)
"""


def test_daemons_are_counted() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    status, used = done.stdout.split()
    assert status == "3"
    assert 0.3 < float(used) < 10
