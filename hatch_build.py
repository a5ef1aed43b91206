"""Put the third-party files of the web page into the package, as ``airflow_megatron/ui/vendor.json`` names them.

The build of a wheel, an sdist or an editable package does it; ``python hatch_build.py`` does it for a checkout that is
used without an installation. A file is downloaded only where it is missing or of another version, and is kept only
if the archive has the checksum of the lock file.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

UI = Path("airflow_megatron") / "ui"
VENDOR = UI / "static" / "vendor"
STAMP = "versions.json"
TIMEOUT_S = 60


def fetch(root: Path) -> list[str]:
    """Download what the web page lacks; see :func:`fetch_locked`.

    :param root: of the source tree
    """
    return fetch_locked(root / UI / "vendor.json", root / VENDOR)


def fetch_locked(lock_file: Path, folder: Path) -> list[str]:
    """Download what a folder lacks.

    :param lock_file: names packages with their archives, checksums and the files that are wanted
    :param folder: where the files go
    :returns: names of the packages that were downloaded
    :raises OSError: when a download fails; ValueError: when an archive is another one than the lock file names
    """
    lock: dict[str, Any] = json.loads(lock_file.read_text())
    wanted = {name: package["integrity"] for name, package in lock.items()}
    targets = [folder / target for package in lock.values() for target in package["files"].values()]
    stamp = folder / STAMP
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted and all(map(Path.is_file, targets)):
        return []
    for name, package in lock.items():
        with urllib.request.urlopen(package["url"], timeout=TIMEOUT_S) as answer:
            archive = answer.read()
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        if found != package["integrity"]:
            raise ValueError(f"{package['url']} is not {name} {package['version']}: its checksum is {found}")
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for member, target in package["files"].items():
                content = tar.extractfile(member)
                if content is None:
                    raise ValueError(f"{package['url']} holds no file {member}")
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                (folder / target).write_bytes(content.read())
    stamp.write_text(json.dumps(wanted) + "\n")
    return list(lock)


class VendorHook(BuildHookInterface):  # type: ignore[type-arg]
    """Fetches the files before the package is built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch; an editable package works without them, and the page says what is missing."""
        try:
            fetch(Path(self.root))
        except OSError as error:
            if version != "editable":
                raise
            self.app.display_warning(f"the web page has no curves yet: {error}")


if __name__ == "__main__":
    for name in fetch(Path(__file__).resolve().parent):
        print(f"fetched {name}", file=sys.stderr)
