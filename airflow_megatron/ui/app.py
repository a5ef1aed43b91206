"""The pages, as a FastAPI application that Airflow's API server mounts.

Airflow mounts a plugin's application without authentication, so every route here requires a logged-in user, and the
routes of a sweep the right to read what its results come from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep, get_user
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from airflow_megatron.plan.run_results import results_dir
from airflow_megatron.ui.live.answers import StaticFolder
from airflow_megatron.ui.live.permissions import (
    check_reports,
    check_results,
    check_text,
    may_read_logs,
    may_see_results,
)
from airflow_megatron.ui.live.refusals import answer_with_pages
from airflow_megatron.ui.live.result_folders import ResultFolders
from airflow_megatron.ui.live.routes import live_routes
from airflow_megatron.ui.live.sweep_runs import is_sweep

PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}

# the report contains output of jobs, so its script runs without any access to Airflow
REPORT_HEADERS = PAGE_HEADERS | {
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "img-src data:; frame-ancestors 'self'"
    ),
}


def sweep_results_app(results: ResultFolders | None = None) -> FastAPI:
    """Return the application with the list of sweeps, a live page for each, its report and its files.

    :param results: folder of the reports; default: the project's results folder
    """
    folders = results or ResultFolders(results_dir("any").parent)
    pages, scripts = _environment(), StaticFolder()
    app = FastAPI(
        title="Megatron sweeps",
        dependencies=[Depends(get_user), Depends(check_text)],
        # these pages would be served without the dependency
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    app.include_router(live_routes(folders))

    def page(template: str, root: str, **values: Any) -> HTMLResponse:
        values |= {"root": root, "static": f"{root}static/{scripts.version}"}
        return HTMLResponse(pages.get_template(template).render(values), headers=PAGE_HEADERS)

    answer_with_pages(app, page)

    @app.get("/")
    def sweeps(user: GetUserDep) -> HTMLResponse:
        """Send the list of sweeps; it contains only the reports until the script has fetched the rest."""
        shown = [sweep for sweep in folders.sweeps() if may_see_results(user, sweep.name)]
        may_see_paths = get_auth_manager().is_authorized_configuration(method="GET", user=user)
        return page("sweeps.html.j2", "./", sweeps=shown, folder=folders.root if may_see_paths else None)

    @app.get("/static/{version}/{name:path}")
    def static(version: str, name: str) -> Response:
        """Send a script or a style sheet."""
        answer = scripts.answer(version, name)
        if answer is None:
            raise HTTPException(404, "there is no such file")
        return answer

    @app.get("/sweeps/{dag_id}", dependencies=[Depends(check_results)])
    def sweep_page(user: GetUserDep, dag_id: str, view: str = "") -> HTMLResponse:
        """Show the live page of a sweep, or the report of a sweep that Airflow does not have."""
        may_read = may_read_logs(user, dag_id)
        report = folders.report(dag_id) if may_read else None
        with create_session() as session:
            is_known = is_sweep(dag_id, session)
        if report is None and not is_known:
            raise HTTPException(404, f"there is no sweep {dag_id!r}")
        is_report = report is not None and (view == "report" or not is_known)
        return page(
            "sweep.html.j2" if is_report else "live.html.j2",
            "../",
            sweep=dag_id,
            is_known=is_known,
            is_report=is_report,
            has_report=report is not None,
            may_read=may_read,
            has_charts=scripts.has_charts,
            files=list(folders.downloads(dag_id)) if may_read else [],
            runs=list(folders.runs(dag_id)) if may_read else [],
        )

    readable = [Depends(check_reports)]

    @app.get("/sweeps/{dag_id}/report", dependencies=readable)
    def report(dag_id: str) -> Response:
        """Send the report page."""
        path = folders.report(dag_id)
        if path is None:
            raise HTTPException(404, "this sweep has no report")
        return FileResponse(path, media_type="text/html", headers=REPORT_HEADERS)

    @app.get("/sweeps/{dag_id}/runs/{run}/report", dependencies=readable)
    def run_report(dag_id: str, run: str) -> Response:
        """Send the report page of one run."""
        path = folders.runs(dag_id).get(run)
        if path is None:
            raise HTTPException(404, "this sweep has no report of such a run")
        return FileResponse(path, media_type="text/html", headers=REPORT_HEADERS)

    @app.get("/sweeps/{dag_id}/files/{name}", dependencies=readable)
    def download(dag_id: str, name: str) -> Response:
        """Send a table or a plot as a download."""
        path = folders.downloads(dag_id).get(name)
        if path is None:
            raise HTTPException(404, "this sweep has no such file")
        headers = {kind: PAGE_HEADERS[kind] for kind in ("X-Content-Type-Options", "Cache-Control")}
        return FileResponse(path, filename=name, headers=headers)

    return app


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
