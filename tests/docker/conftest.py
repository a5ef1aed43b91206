from __future__ import annotations

import sys
from pathlib import Path

# docker/local_cluster is not part of the package: it runs before anything is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docker"))
