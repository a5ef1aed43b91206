"""``make studies``: run every shipped spec, shrunk, and check what cannot run here.

    python tests/studies [SPEC…]

Exit status 0 when every study has finished; 1 when one has not; 2 when upstream Megatron-LM is not there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))

from processor_time import run_counted
from slurm_cluster import SlurmCluster
from studies import STUDIES, Study
from study_site import RELEASE, Row, StudySite, not_run, table
from upstream import UpstreamMissingError, find_upstream

from airflow_megatron.spec.documents.project import local_dir

AT_ONCE = 2
"""Sweeps that run at the same time; each works its points a few at a time."""


def main() -> int:
    """Run the studies, print a line as each ends, and the table."""
    parser = argparse.ArgumentParser(prog="make studies", description="Run the shipped specs, shrunk.")
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="names of specs; all when left out")
    parser.add_argument("--keep", action="store_true", help="keep run directories and logs, and say where")
    parser.add_argument(
        "--uncounted", action="store_true", help="do not count the processor time of all processes"
    )
    given = parser.parse_args()
    if not given.uncounted:
        status, used = run_counted([sys.executable, *sys.argv, "--uncounted"])
        print(f"studies: processor time {used:.0f} s of all processes, those of jobs and daemons included")
        return status
    for number in (signal.SIGTERM, signal.SIGINT):  # stops all started processes, including background ones
        signal.signal(number, signal.default_int_handler)
    known = {study.spec for study in STUDIES}
    if unknown := set(given.specs) - known:
        parser.error(f"no study {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    chosen = [study for study in STUDIES if not given.specs or study.spec in given.specs]
    try:
        upstream = find_upstream(RELEASE)
    except UpstreamMissingError as error:
        print(f"studies: {error}", file=sys.stderr)
        return 2
    print(f"studies: Megatron-LM {RELEASE} in {upstream}", flush=True)
    begun = time.monotonic()
    place = Path(tempfile.mkdtemp(prefix="studies-", dir=local_dir()))
    try:
        rows = _run(chosen, place, upstream)
    finally:
        if given.keep:
            print(f"studies: kept {place}")
        else:
            shutil.rmtree(place, ignore_errors=True)
    print(f"\n{table(rows)}\n")
    failed = [row for row in rows if row.outcome == "failed"]
    print(
        f"studies: {len(rows)} rows, {len(failed)} failed, {time.monotonic() - begun:.0f} s; "
        f"load {os.getloadavg()[1]:.1f}"
    )
    return 1 if failed else 0


def _run(chosen: list[Study], place: Path, upstream: Path) -> list[Row]:
    cluster = SlurmCluster(place / "cluster")
    cluster.control("up")
    try:
        site = StudySite(place / "site", cluster, upstream)
        site.place.mkdir()
        site.prepare()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            rows = list(pool.map(lambda study: _study(site, study), chosen))
        site.stop()
    finally:
        cluster.control("down", "--purge")
    return [row for found in rows for row in found]


def _study(site: StudySite, study: Study) -> list[Row]:
    rows = [site.run(study)] if study.select else []
    try:
        rows += not_run(study, site.upstream) if not study.label else []
    except Exception as error:
        rows.append(Row(study.spec, 0, 0, 0, "failed", str(error)))
    for row in rows:
        print(f"  {row.study}: {row.outcome} after {row.seconds:.0f} s  {row.reason[:200]}", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
