"""Entry point of ``python3 docker/distributed``."""

from __future__ import annotations

import sys
from pathlib import Path

# Python puts this folder itself first on the path; the modules are imported as the package `distributed`.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from distributed.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
