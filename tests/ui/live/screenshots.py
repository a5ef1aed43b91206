"""``make screenshots``: photograph the page of the finished quick start in Debian's Chromium, for ``docs/images``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import httpx
from browser import Page, browser_page

from airflow_megatron.cli.local.local_airflow import LocalAirflow
from airflow_megatron.spec.documents.project import local_dir, project_root

IMAGES = project_root() / "docs" / "images"
SWEEP = "quickstart"
WIDTH, HEIGHT = 1400, 1180


def main() -> int:
    """Start Airflow with the results of the quick start, take the screenshot, and stop it."""
    airflow = LocalAirflow(local_dir() / "airflow")
    if not airflow.database.exists():
        print("screenshots: run `make quickstart` first", file=sys.stderr)
        return 2
    airflow.start()
    try:
        user, password = airflow.credentials()
        answer = httpx.post(
            f"{airflow.address}/auth/token", json={"username": user, "password": password}
        ).raise_for_status()
        with tempfile.TemporaryDirectory() as profile, browser_page(Path(profile)) as page:
            page.set_cookie(airflow.address, "_token", answer.json()["access_token"])
            page.resize(WIDTH, HEIGHT)
            page.set_dark(False)
            sweep_page(page, airflow.address)
    finally:
        airflow.stop()
    return 0


def sweep_page(page: Page, address: str) -> None:
    """Take a screenshot of the sweep's page inside Airflow."""
    page.open(f"{address}/plugin/megatron-sweeps/megatron/sweeps/{SWEEP}")
    page.wait("document.querySelector('iframe')?.contentDocument?.querySelector('#chart canvas')")
    take(page, "sweep-page.png")


def take(page: Page, name: str) -> None:
    """Write a screenshot after all animations have ended."""
    time.sleep(3)
    page.screenshot(IMAGES / name, whole=False)
    print(f"wrote {IMAGES / name}")


if __name__ == "__main__":
    sys.exit(main())
