"""Where upstream Megatron-LM is on this machine: a checkout, or the archive of a release."""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

from airflow_megatron.spec.documents.project import local_dir

CHECKOUT_VARIABLE = "MEGATRON_LM_CHECKOUT"
ARCHIVE_VARIABLE = "MEGATRON_LM_ARCHIVE"
_PACKAGE_INFO = Path("megatron/core/package_info.py")
_VERSION = re.compile(r"^(MAJOR|MINOR|PATCH) = (\d+)$", re.MULTILINE)


class UpstreamMissingError(RuntimeError):
    """There is no checkout of the release, and no archive to create one from."""


def find_upstream(release: str, unpacked: Path | None = None) -> Path:
    """Return a folder with unmodified Megatron-LM of a release.

    Looks at the folder named by ``MEGATRON_LM_CHECKOUT``, then at ``.local/Megatron-LM/<release>``, then at the archive
    named by ``MEGATRON_LM_ARCHIVE``, which it unpacks.

    :param release: such as ``core_v0.16.1``
    :param unpacked: where an archive is unpacked; ``.local/upstream-for-tests`` when left out
    :raises UpstreamMissingError: if none of them contains the release; the message shows their contents and a hint
    """
    tried = []
    named = os.environ.get(CHECKOUT_VARIABLE)
    places = [(Path(named), f"{CHECKOUT_VARIABLE}={named}")] if named else []
    places.append((local_dir() / "Megatron-LM" / release, str(local_dir() / "Megatron-LM" / release)))
    for folder, name in places:
        found = release_of(folder)
        if found == release:
            return folder.resolve()
        tried.append(f"{name} {f'holds {found}' if found else 'holds no Megatron-LM'}")
    archive = os.environ.get(ARCHIVE_VARIABLE)
    if archive and not Path(archive).is_file():
        tried.append(f"{ARCHIVE_VARIABLE}={archive} is not a file")
    elif archive:
        folder = (unpacked or local_dir() / "upstream-for-tests") / release
        found = release_of(folder) or _unpack(Path(archive), folder)
        if found == release:
            return folder
        tried.append(f"{ARCHIVE_VARIABLE}={archive} holds {found or 'no Megatron-LM'}")
    else:
        tried.append(f"{ARCHIVE_VARIABLE} is not set")
    raise UpstreamMissingError(
        f"no Megatron-LM {release}: {'; '.join(tried)}. "
        f"Run Megatron-LM/checkout.sh {release} .local/Megatron-LM/{release}"
    )


def release_of(folder: Path) -> str | None:
    """Return the release that a folder holds, such as ``core_v0.16.1``; None when it holds no Megatron-LM."""
    info = folder / _PACKAGE_INFO
    if not info.is_file() or not (folder / "pretrain_gpt.py").is_file():
        return None
    parts = dict(_VERSION.findall(info.read_text()))
    return f"core_v{parts.get('MAJOR')}.{parts.get('MINOR')}.{parts.get('PATCH')}"


def _unpack(archive: Path, folder: Path) -> str | None:
    """Unpack an archive's only folder to *folder*, whole or not at all; return its release."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
        (root,) = Path(place).iterdir()
        found = release_of(root)
        if found == folder.name and not folder.exists():
            shutil.move(root, folder)
    return found
