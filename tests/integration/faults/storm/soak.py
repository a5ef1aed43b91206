"""Random faults for any length of time: python tests/integration/faults/storm/soak.py --seed N --faults 1000

Starts a cluster in a temporary folder and runs a sweep under faults, in rounds; the same seed gives the same faults.
Stops after the first round with a violation, prints it with the faults of that round, and keeps the logs of the cluster
and the tasks (exit status 1).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from proxied_site import ProxiedSite
from slurm_cluster import SlurmCluster
from swept_storm import SweptStorm

FAULTS_PER_ROUND = 300


def main() -> int:
    parser = argparse.ArgumentParser(description="A sweep under random faults, in rounds of 300.")
    parser.add_argument(
        "--seed", type=int, required=True, help="draws the faults; the next round has the next one"
    )
    parser.add_argument("--faults", type=int, default=1000, help="how many in all (default: %(default)s)")
    parser.add_argument(
        "--points", type=int, default=60, help="of the sweep of a round (default: %(default)s)"
    )
    parser.add_argument(
        "--per-second", type=float, default=1.5, help="faults, on average (default: %(default)s)"
    )
    parser.add_argument(
        "--ahead", type=int, default=1, help="stages queued behind one that runs (default: %(default)s)"
    )
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    cluster = SlurmCluster(place / "cluster")
    cluster.control("up")
    print(f"logs: {place}", flush=True)
    left, seed = arguments.faults, arguments.seed
    try:
        while left > 0:
            faults = min(left, FAULTS_PER_ROUND)
            site = ProxiedSite(place / f"round-{seed}", cluster)
            site.place.mkdir()
            site.prepare_folders()
            site.open()
            try:
                storm = SweptStorm(
                    site,
                    seed,
                    faults,
                    arguments.points,
                    arguments.per_second,
                    f"soak_{seed}",
                    arguments.ahead,
                )
                wrong = storm.run()
                print(storm.summary(), flush=True)
            finally:
                site.close()
            if wrong:
                print(storm.failure_report(wrong))
                return 1
            left, seed = left - faults, seed + 1
        return 0
    finally:
        cluster.control("down")


if __name__ == "__main__":
    sys.exit(main())
