"""Run a program that prints each index file that it saves, or is killed when half of the first one is written.

python watched_saves.py say|die PROGRAM WORD…
"""

from __future__ import annotations

import io
import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

DIES = sys.argv[1] == "die"


def _save(file: Any, array: Any, **_settings: Any) -> None:
    written = io.BytesIO()
    np.lib.format.write_array(written, array)
    content = written.getvalue()[: written.tell() // 2 if DIES else None]
    if hasattr(file, "write"):
        file.write(content)
        file.flush()
    else:
        Path(file).write_bytes(content)
    if DIES:
        os.kill(os.getpid(), signal.SIGKILL)
    print("saved an index file", flush=True)


vars(np)["save"] = _save
sys.argv = sys.argv[2:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
