"""A sweep whose login expires repeatedly: python tests/integration/faults/storm/expiring_logins.py --jobs 1000

Starts a cluster, and a login node that closes each connection when its certificate expires. Prints a summary;
the exit status is 1 if a task failed, a job was lost or ran twice, or a certificate took more than one login.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from expiring_site import ExpiringSite, ExpiringSweep
from slurm_cluster import SlurmCluster


def main() -> int:
    parser = argparse.ArgumentParser(description="A sweep with certificates that end while it runs.")
    parser.add_argument("--jobs", type=int, default=1000, help="of the sweep (default: %(default)s)")
    parser.add_argument(
        "--expiries", type=int, default=10, help="while it runs, at least (default: %(default)s)"
    )
    parser.add_argument(
        "--lifetime", type=int, default=120, help="of a certificate in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=float, help="until the last job begins (default: as long as the certificates last)"
    )
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="logins-"))
    cluster = SlurmCluster(place / "cluster")
    cluster.control("up")
    print(f"logs: {place}", flush=True)
    try:
        (place / "site").mkdir()
        with ExpiringSite(place / "site", cluster, arguments.lifetime) as site:
            sweep = ExpiringSweep(site, arguments.jobs, arguments.expiries, arguments.seconds)
            wrong = sweep.run()
            print("\n".join([sweep.summary(), *wrong]))
        return 1 if wrong else 0
    finally:
        cluster.control("down")


if __name__ == "__main__":
    sys.exit(main())
