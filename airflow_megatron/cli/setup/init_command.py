"""``airflow-megatron init``: create a project, and optionally a local cluster for its first sweep."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_megatron.cli.local.local_cluster import run_local_cluster
from airflow_megatron.cli.local.local_connection import (
    AirflowCommandError,
    cluster_description,
    import_connections,
    local_connections,
    run_airflow,
)
from airflow_megatron.cli.local.private_files import make_private
from airflow_megatron.cli.setup.new_project import make_project, profile_connection, site_names
from airflow_megatron.spec.documents.configuration import airflow_configuration, airflow_home, configured
from airflow_megatron.spec.documents.errors import did_you_mean
from airflow_megatron.spec.documents.project import clusters_dir, local_dir, sweep_specs_dir
from airflow_megatron.spec.documents.shipped_files import shipped

if TYPE_CHECKING:
    from collections.abc import Sequence

CONNECTION = """\
airflow connections add {connection} --conn-type slurm --conn-host LOGIN_NODE --conn-login me \\
    --conn-extra '{{"key_file": "~/.ssh/id_ed25519", "host_key": "ssh-ed25519 AAAA…"}}'"""


def _folder(text: str) -> Path:
    """Return the project's folder; an unset variable of a shell is not the current one."""
    if not text.strip():
        raise typer.BadParameter("it is empty; write . for the current folder")
    return Path(text)


def init(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The project's folder", parser=_folder),
    ],
    local_cluster: Annotated[
        bool,
        typer.Option(
            "--local-cluster",
            help="Also install and start a Slurm cluster on this machine, make the environment of its jobs, "
            "and add its connection to Airflow: first_sweep.yaml runs there",
        ),
    ] = False,
    site: Annotated[
        list[str] | None,
        typer.Option(
            "--site",
            metavar="NAME",
            help="Also write the profile of this site; may be repeated",
            autocompletion=lambda incomplete: [name for name in site_names() if name.startswith(incomplete)],
        ),
    ] = None,
) -> None:
    """Create a project: a sweep spec, cluster profiles and the DAG files. Existing files are kept."""
    folder = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100
    sites = list(dict.fromkeys(site or []))
    for name in sites:
        if name not in (known := site_names()):
            hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
            print(f"there is no shipped profile of a site {name!r} ({hint})", file=sys.stderr)
            raise typer.Exit(2)
    try:
        for path, is_new in make_project(folder, sites):
            print(f"{'wrote' if is_new else 'kept '} {folder / path}")
    except OSError as error:
        print(f"the project cannot be written: {error.filename or folder}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(1) from None
    missing = _missing_configuration(folder)
    if missing:
        print(
            f"\nSet these options in {airflow_configuration()}, below the heads of the sections that it has already\n"
            "(a section must not occur twice), or as variables such as AIRFLOW__CORE__DAGS_FOLDER:\n"
        )
        print(missing)
    if local_cluster:
        raise typer.Exit(_start_local_cluster())
    _show_next_steps(folder, sites)


def _show_next_steps(folder: Path, sites: Sequence[str]) -> None:
    for name in sites:
        print(f"\nThe connection of {name} ({shipped('docs/sites') / name}.md):\n")
        print(CONNECTION.format(connection=profile_connection(name)))
        print(f"\nThen: airflow-megatron cluster install {name}, and airflow-megatron cluster check {name}")
    if not sites:
        example = folder / "clusters" / "example-slurm.yaml"
        print(f"\nFor a cluster, copy {shlex.quote(str(example))} and give Airflow its connection:\n")
        print(CONNECTION.format(connection="slurm_mycluster"))
        print(
            "\nThe programs and the environment of its jobs: airflow-megatron cluster install NAME\n"
            f"For a cluster on this machine: airflow-megatron init {shlex.quote(str(folder))} --local-cluster"
        )


def _missing_configuration(folder: Path) -> str:
    """Return the lines of airflow.cfg that configure this project; empty if Airflow already uses it."""
    lines = []
    dags = Path(configured("dags_folder", "core") or airflow_home() / "dags")
    if dags.resolve() != (folder / "dags").resolve():
        lines += ["[core]", f"dags_folder = {folder / 'dags'}"]
    own = {"sweep_specs_folder": sweep_specs_dir(), "clusters_folder": clusters_dir()}
    wanted = {"sweep_specs_folder": folder / "sweep_specs", "clusters_folder": folder / "clusters"}
    if any(own[option].resolve() != wanted[option].resolve() for option in own):
        lines += ["[megatron]", *(f"{option} = {path}" for option, path in wanted.items())]
    return "\n".join(line.replace("%", "%%") for line in lines)


def _start_local_cluster() -> int:
    """Install and start a cluster on this machine, and add its connection to Airflow; return the exit status."""
    from airflow_megatron.cli.setup.cluster_install import InstallationChoice, install_on

    print()
    make_private(local_dir())
    for command in ("install", "up"):
        status = run_local_cluster(command)
        if status:
            return status
    try:
        import_connections(local_connections(cluster_description()))
    except AirflowCommandError as error:
        print(error, file=sys.stderr)
        return 1
    print("Airflow has the connection slurm_local")
    status = install_on("local", InstallationChoice(parts=("programs", "environment"), python=sys.executable))
    if status == 0:
        _show_new_dags()
        print("\nRun the first sweep: airflow dags trigger first-sweep")
    return status


def _show_new_dags() -> None:
    """Make Airflow load new DAG files at once; by default its processor scans for them every five minutes."""
    try:
        run_airflow("dags", "reserialize")
    except AirflowCommandError as error:  # the processor will find them later
        print(error, file=sys.stderr)
