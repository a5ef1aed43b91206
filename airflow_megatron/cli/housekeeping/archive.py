"""``airflow-megatron archive``: write the files of a sweep to one archive on its cluster."""

from __future__ import annotations

import io
import json
import tarfile
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_megatron.cli.housekeeping.remains import HousekeepingError
from airflow_megatron.cli.runs.login_node import command_line_hook
from airflow_megatron.plan.pinned import PinnedSweep
from airflow_megatron.plan.pins.pin_store import PinError, PinStore
from airflow_megatron.slurm.remote.run_archive import Archive, archive_script, parse_archive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_megatron.cli.housekeeping.remains import Remains

_PACKING_S: Final = 24 * 3600.0
_OWN_FOLDER: Final = "airflow-megatron"
ENDINGS: Final = (".tar.zst", ".tar.gz", ".tgz")


def archives(remains: Remains, *, to: str = "", checkpoints: bool = False) -> Iterator[Archive]:
    """Write an archive on each cluster of a sweep, and yield each one.

    An archive contains the folders of the sweep (or of the selected points) on that cluster, and
    ``airflow-megatron/`` with the reports and the stored plans of this machine.

    :param to: path of the archive on the cluster; default: a dated file in ``<run_root>/.archives/``
    :param checkpoints: include checkpoints and converted models
    :raises HousekeepingError: if there is nothing to archive, or ``to`` is not a valid path
    :raises airflow_megatron.slurm.remote.run_archive.ArchiveError: if an archive cannot be written
    :raises airflow_megatron.slurm.remote.transport.TransportError: if a login node does not answer
    """
    sites = [site for site in remains.sites if site.folders]
    if not sites:
        raise HousekeepingError(f"{remains.sweep} has no folder to archive")
    if to and (not to.startswith("/") or not to.endswith(ENDINGS)):
        raise HousekeepingError(
            f"{to!r} is not a valid path of an archive; write an absolute path that ends in .tar.gz or .tar.zst"
        )
    if to and len(sites) > 1:
        names = ", ".join(site.cluster.name for site in sites)
        raise HousekeepingError(f"{remains.sweep} has run on several clusters ({names}); omit --to")
    extra = _own_records(remains)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    for site in sites:
        root = site.cluster.run_root.rstrip("/") or "/"
        script = archive_script(
            root,
            site.folders,
            default=f"{root}/.archives/{remains.sweep}-{stamp}",
            to=to,
            extra=extra,
            checkpoints=checkpoints,
        )
        run = partial(command_line_hook(site.cluster).run, timeout=_PACKING_S)
        yield parse_archive(run(script))


def _own_records(remains: Remains) -> bytes:
    """Return a tar.gz of the data on this machine: reports, and the plans of all runs."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        _add(
            archive,
            f"{_OWN_FOLDER}/archive.json",
            {"sweep": remains.sweep, "points": sorted(remains.points or ())},
        )
        for folder in remains.reports:
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not path.is_symlink():
                    archive.add(path, f"{_OWN_FOLDER}/results/{path.relative_to(folder)}", recursive=False)
        for run_id, plan in _plans(remains.sweep):
            _add(archive, f"{_OWN_FOLDER}/plans/{run_id.replace('/', '_')}.json", plan)
    return packed.getvalue()


def _plans(sweep: str) -> Iterator[tuple[str, object]]:
    store = PinStore()
    for run_id in store.runs(sweep):
        digest = store.newest(sweep, run_id)
        try:
            pinned = PinnedSweep.read(str(digest), store)
            yield (
                run_id,
                {
                    **store.get(str(digest)),
                    "surroundings": pinned.plan_environment.to_json(()),
                    "jobs": [job.to_json() for job in pinned.placed_plan().jobs],
                },
            )
        except PinError:
            continue  # damaged plan: archive the others


def _add(archive: tarfile.TarFile, name: str, content: object) -> None:
    data = json.dumps(content, indent=1, ensure_ascii=False).encode()
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    entry.mtime = int(datetime.now(UTC).timestamp())
    archive.addfile(entry, io.BytesIO(data))
