"""Arguments that several commands share, and functions that load the specs that they name."""

from __future__ import annotations

import logging
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from airflow_megatron.cli.console.collection import no_collection
from airflow_megatron.cli.console.empty_options import not_empty
from airflow_megatron.cli.console.verbosity import says_warnings
from airflow_megatron.plan.halves.split_plan import LEAST_POINTS, SplitPlan, split_plan
from airflow_megatron.plan.pins.placements import Placements
from airflow_megatron.plan.point_choice import choose_points
from airflow_megatron.plan.repeated_names import require_own_name
from airflow_megatron.plan.sweep_cluster import sweep_cluster, sweep_clusters
from airflow_megatron.plan.sweep_plan import Plan, check_on_clusters, check_sweep, placed_plan
from airflow_megatron.spec.documents.errors import Problem, SpecError, did_you_mean
from airflow_megatron.spec.documents.named_files import NamedFileError, read_spec_file
from airflow_megatron.spec.documents.project import sweep_specs_dir
from airflow_megatron.spec.documents.yaml_document import NO_SUCH_FILE, YAML_ENDINGS
from airflow_megatron.spec.model.cluster_profile import cluster_names
from airflow_megatron.spec.spec_files import load_sweep, spec_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_megatron.spec.model.sweep import Sweep

log = logging.getLogger(__name__)


def complete_spec(incomplete: str) -> list[str]:
    """Return the specs in ``sweep_specs/`` and the YAML files that begin with the incomplete word."""
    names = [path.stem for path in spec_files(sweep_specs_dir()) if path.stem.startswith(incomplete)]
    folder, _, begin = incomplete.rpartition("/")
    files = Path(folder or ("/" if incomplete.startswith("/") else ".")).glob(f"{begin}*")
    prefix = incomplete[: len(incomplete) - len(begin)]
    return names + sorted(f"{prefix}{path.name}" for path in files if path.suffix in (".yaml", ".yml"))


def complete_cluster(incomplete: str) -> list[str]:
    """Return the cluster profiles that begin with the incomplete word."""
    return [name for name in cluster_names() if name.startswith(incomplete)]


def _completing_sweep(ctx: typer.Context) -> Sweep | None:
    """Return the sweep named on the incomplete command line, or None if it cannot be loaded."""
    # while an option lacks its value, click does not assign the words before it to parameters
    spec = ctx.params.get("spec") or next(iter(ctx.args), None)
    try:
        return load_spec(spec) if spec else None
    except SpecError:
        return None


def complete_point(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the points of the spec on the command line; in a comma-separated list, complete the last one."""
    before, comma, begin = incomplete.rpartition(",")
    sweep = _completing_sweep(ctx)
    try:
        names = [point.name for point in sweep.points] if sweep else []
    except SpecError:
        names = []
    return [f"{before}{comma}{name}" for name in names if name.startswith(begin)]


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs of the spec on the command line, as ``point.stage``."""
    sweep = _completing_sweep(ctx)
    stages = sweep.tree if sweep else ()
    shared = [stage.name for stage in stages if stage.scope == "sweep"]
    own = [stage.name for stage in stages if stage.scope != "sweep"]
    names = shared + [f"{point}.{stage}" for point in complete_point(ctx, "") for stage in own]
    return [name for name in names if name.startswith(incomplete)]


SpecArgument = Annotated[
    str,
    typer.Argument(
        metavar="SPEC",
        help="A spec file, or the name of a spec in sweep_specs/",
        autocompletion=complete_spec,
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Cluster profile that replaces the spec's own",
        autocompletion=complete_cluster,
        callback=not_empty("the spec's own cluster"),
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a value of the spec: a dotted key and a YAML value; may be repeated",
    ),
]
SelectOption = Annotated[
    str,
    typer.Option(
        "--select",
        metavar="EXPR",
        help='Select points by an expression, "{{ lr < 1e-2 }}", or by patterns for their names, "S_*,M_lr0.001"',
        autocompletion=complete_point,
        callback=not_empty("all points"),
    ),
]


def load_spec(spec: str, settings: Sequence[str] | None = None) -> Sweep:
    """Load a spec file, or the spec with this name in ``sweep_specs/``.

    :raises SpecError: if it does not exist or is invalid
    """
    path = spec_path(spec)
    log.debug("reading %s", path)
    return load_sweep(path, settings or ())


def load_own_spec(spec: str, settings: Sequence[str] | None = None) -> Sweep:
    """Load a spec whose jobs may run: in ``sweep_specs/``, no other spec owns the name of its sweep.

    :raises SpecError: if it does not exist, is invalid, or has the name of another
    """
    sweep = load_spec(spec, settings)
    require_own_name(sweep)
    return sweep


def spec_path(spec: str) -> Path:
    """Return the file that a word on the command line refers to: a path, the name of a file, or that of a sweep.

    :raises SpecError: if it does not exist
    """
    path = Path(spec)
    if path.exists() or "/" in spec:
        return path
    files = spec_files(sweep_specs_dir())
    known = {file.stem: file for file in files}
    name = path.stem if path.suffix in YAML_ENDINGS else spec
    if name in known:
        return _chosen(
            [file for file in files if file.name == spec] or [file for file in files if file.stem == name]
        )
    of_sweep = _files_of_sweep(spec, files)
    if len(of_sweep) == 1:
        return of_sweep[0]
    hint = (
        (path.stem not in known and _hint_at_place(path.stem, of_sweep))
        or did_you_mean(path.stem, known)
        or f"specs: {', '.join(known) or 'none yet'}"
    )
    raise SpecError(Problem(str(sweep_specs_dir() / f"{name}.yaml"), 0, 0, NO_SUCH_FILE, hint))


def _chosen(files: Sequence[Path]) -> Path:
    """Return the file in ``sweep_specs/`` itself, or else the only one; another person may use the name too.

    :raises SpecError: if several sub-folders have one
    """
    if len(files) > 1 and files[0].parent != sweep_specs_dir():
        message = f"{len(files)} specs are called {files[0].stem}"
        hint = f"write the path of one: {' or '.join(map(str, files[:4]))}"
        raise SpecError(Problem(str(sweep_specs_dir()), 0, 0, message, hint))
    return files[0]


def _files_of_sweep(name: str, files: Iterable[Path]) -> list[Path]:
    """Return the files of ``sweep_specs/`` whose sweep has this name.

    :param files: the specs
    """
    named = re.compile(rf"^name: *[\"']?{re.escape(name)}[\"']?\s*(?:#|$)", re.MULTILINE)
    found = []
    for file in files:
        with suppress(OSError, NamedFileError):  # its own owner sees the error
            if named.search(read_spec_file(file)):
                found.append(file)
    return found


def _hint_at_place(name: str, of_sweep: Sequence[Path]) -> str:
    """Return a hint for a spec that is not found by its name; empty if no similar file exists.

    :param of_sweep: files of ``sweep_specs/`` whose sweep has this name
    """
    if of_sweep:
        names = " or ".join(file.stem for file in of_sweep)
        return f"{name} is the sweep of {len(of_sweep)} files: write {names}"
    here = sweep_specs_dir()
    for file in sorted(here.iterdir()) if here.is_dir() else ():
        # a foreign spec's template and sidecar stand beside it, so this spec is not found only for its ending
        if file.is_file() and file.name.lower() in (
            f"{name}{ending}".lower() for ending in (*YAML_ENDINGS, ".txt", ".yaml.txt")
        ):
            return f"{file.name} is there: rename it to {name}.yaml"
    for folder in (Path("sweep_specs"), Path()):
        for word in dict.fromkeys((name, name.replace("-", "_"))):
            file = (folder / word).with_suffix(".yaml")
            if file.is_file():
                return (
                    f"{file} is here: write this path, or set sweep_specs_folder in [megatron] of airflow.cfg"
                )
    return ""


def checked_plan(
    sweep: Sweep,
    cluster: str | None = None,
    select: str = "",
    *,
    warn: bool = True,
    beside: Sweep | None = None,
) -> Plan:
    """Return the checked plan of a sweep, or of its selected points.

    :param warn: log the warnings
    :param beside: another sweep for which the same selection is made, and may match instead
    :raises SpecError: contains all problems
    """
    with no_collection():
        return _checked_plan(sweep, cluster, select, warn, beside)


def checked_plans(
    sweep: Sweep, cluster: str | None = None, select: str = "", *, warn: bool = True
) -> list[Plan]:
    """Return the checked plans of a sweep, or of its selected points, one for each cluster.

    :param warn: log the warnings
    :raises SpecError: contains all problems
    """
    if cluster or not sweep.settings.clusters:
        return [checked_plan(sweep, cluster, select, warn=warn)]
    with no_collection():
        points = choose_points(sweep, select) if select.strip() else None
        plans = check_on_clusters(sweep, sweep_clusters(sweep), points)
        if warn:
            _log_warnings(dict.fromkeys(warning for plan in plans for warning in plan.warnings))
        return plans


def placed_sweep(sweep: Sweep, plans: Sequence[Plan]) -> Plan:
    """Return the plan of a sweep with each point on its cluster, if the point has one.

    :param plans: one for each cluster
    """
    if len(plans) == 1:
        return plans[0]
    return placed_plan(plans, {point: its.cluster for point, its in Placements(sweep.name).read().items()})


def printed_plan(sweep: Sweep, cluster: str | None = None, select: str = "") -> Plan | SplitPlan:
    """Return the checked plan of a sweep for its JSON text; many points are planned by two processes.

    :raises SpecError: contains all problems
    """
    with no_collection():
        profile = sweep_cluster(sweep, cluster)
        points = choose_points(sweep, select) if select.strip() else sweep.points
        split = None
        # macOS lacks this function, and forks are unsafe there
        several = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1
        if several and len(points) >= LEAST_POINTS:
            split = split_plan(sweep, profile, points)
        if split is None:
            return _checked_plan(sweep, cluster, select, warn=True)
        _log_warnings(split.warnings)
        return split


def _checked_plan(
    sweep: Sweep, cluster: str | None, select: str, warn: bool, beside: Sweep | None = None
) -> Plan:
    begin = time.perf_counter()
    profile = sweep_cluster(sweep, cluster)
    points = choose_points(sweep, select, beside=beside) if select.strip() else None
    log.info("%s: %d points in %.2f s", sweep.name, len(sweep.points), time.perf_counter() - begin)
    plan = check_sweep(sweep, profile, points)
    log.info(
        "%s on %s: %d jobs checked in %.2f s",
        sweep.name,
        profile.name,
        len(plan.jobs),
        time.perf_counter() - begin,
    )
    if warn:
        _log_warnings(plan.warnings)
    return plan


def _log_warnings(warnings: Iterable[Problem]) -> None:
    if says_warnings():
        for warning in warnings:
            log.warning("%s", warning)
