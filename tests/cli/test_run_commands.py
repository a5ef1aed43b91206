"""``status``, ``report`` and ``cancel`` on a login node with the records of runs."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from airflow_database import reconnect

from airflow_megatron.cli.runs.status import looks_at
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.results import load
from airflow_megatron.results.readings.progress import StageState
from airflow_megatron.slurm.submission.job_script import attempt_of
from airflow_megatron.spec.spec_files import load_sweep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from command_line import Answer
    from login_site import LoginSite


class TestStatus:
    @pytest.mark.slow
    def test_all_queries_share_one_login(self, site: LoginSite) -> None:
        jobs = site.run_sweep("first")
        with looks_at(check_sweep(load_sweep(site.spec))) as look:
            assert look().count(StageState.FINISHED) == 0
            site.finished(jobs[0], "101")
            assert look().count(StageState.FINISHED) == 1
            assert look().cells["left", "work"].state is StageState.FINISHED
        assert site.server.logins == 1

    @pytest.mark.slow
    def test_a_connection_that_breaks_between_two_queries_is_replaced(self, site: LoginSite) -> None:
        with looks_at(check_sweep(load_sweep(site.spec))) as look:
            look()
            site.server.signal_sessions(signal.SIGKILL)
            assert look().count(StageState.WAITING) == 4
        assert site.server.logins == 2

    @pytest.mark.slow
    def test_a_queue_that_cannot_be_read(self, site: LoginSite) -> None:
        site.submitted(site.run_sweep("first")[0], "101")
        site.command("squeue", "exit 1")
        last = site.call("status", "study").stdout.splitlines()[-1]
        assert last.endswith("(squeue does not answer on site: states are from files alone)")
        assert json.loads(site.call("status", "study", "--format", "json").stdout)["without_queue"] == [
            "site"
        ]

    @pytest.mark.slow
    def test_an_unreachable_login_node(self, site: LoginSite) -> None:
        site.server.stop()
        answer = site.call("status", "study")
        assert answer.status == 1
        assert "cannot be reached" in answer.stderr

    @pytest.mark.slow
    def test_watching_ends_with_the_last_job(self, site: LoginSite) -> None:
        for number, job in enumerate(site.run_sweep("first"), 101):
            site.finished(job, str(number))
        answer = site.call("status", "study", "--watch", "--every", "1", "--format", "json")
        assert answer.status == 0
        assert json.loads(answer.stdout)["sweep"] == "study"


class TestReport:
    @pytest.mark.slow
    def test_of_an_earlier_run(self, site: LoginSite) -> None:
        for number, job in enumerate(site.run_sweep("whole"), 101):
            site.finished(job, str(number))
        site.run_sweep("a part", "left")
        # the newest run has one point; the earlier one is reported with its own plan
        answer = site.call("report", "study", "--run", "whole")
        assert answer.status == 0, answer.stderr
        folder = site.place / "local" / "results" / "study" / "runs" / "whole"
        about = json.loads((folder / "about.json").read_text())
        assert (about["run"], about["points"], about["all_points"]) == ("whole", 2, 2)
        assert "2 of 2 points on site, run whole" in (folder / "report.html").read_text()
        assert f"wrote {folder / 'report.html'}" in answer.stdout
        answer = site.call("report", "study")
        assert answer.status == 0
        about = json.loads((folder.parent / "a%20part" / "about.json").read_text())
        assert (about["run"], about["points"], about["selection"]) == ("a part", 1, "left")
        # the sweep's own report remains the one with more results
        assert json.loads((folder.parents[1] / "about.json").read_text())["run"] == "whole"

    @pytest.mark.slow
    def test_of_a_run_whose_spec_has_changed(self, site: LoginSite) -> None:
        for number, job in enumerate(site.run_sweep("whole"), 101):
            site.finished(job, str(number))
        site.spec.write_text(site.spec.read_text().replace("[left, right]", "[up]"))
        answer = site.call("report", "study", "--run", "whole")
        assert answer.status == 0, answer.stderr
        assert {"left", "right"} <= set(answer.stdout.replace("|", " ").split())

    @pytest.mark.slow
    def test_of_an_unknown_run(self, site: LoginSite) -> None:
        site.run_sweep("manual__2026-11-22")
        answer = site.call("report", "study", "--run", "manual__2026-11-23")
        assert answer.status == 1
        assert "study has no run 'manual__2026-11-23' that has stored a plan" in answer.stderr
        assert "'manual__2026-11-22'" in answer.stderr


class TestResults:
    @pytest.mark.slow
    def test_rows_are_rebuilt_from_the_run_directories(self, site: LoginSite) -> None:
        first = site.run_sweep("whole")[0]
        site.finished(first, "101")
        log = Path(first.log_file(1))
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(
            "noise\n iteration 10/ 20 | consumed samples: 160 | lm loss: 2.5E+00 | number of nan iterations: 0 |\n"
        )
        for _ in range(2):
            answer = site.call("results", "rebuild", "study")
            assert answer.status == 0, answer.stderr
            assert "whole: 1 row of iterations" in answer.stdout
            results = load("study", root=str(site.place / "local" / "results"))
            (row,) = results.iterations.to_dicts()
            assert (row["point"], row["stage"], row["attempt"], row["job_id"]) == (
                first.point,
                first.stage,
                1,
                "101",
            )
            assert (row["iteration"], row["loss"], row["offset"]) == (10, 2.5, len("noise\n"))
            assert results.attempts["outcome"].to_list() == ["finished"]
        assert "merged into one" not in site.call("results", "compact", "study").stdout
        misspelt = site.call("results", "compact", "studdy")
        assert misspelt.status == 1
        assert "has no rows of a sweep 'studdy'" in misspelt.stderr
        assert site.call("results", "rebuild", "study", "--run", "other").status == 1


class TestCancel:
    """On a machine that reaches the cluster, but not Airflow's database."""

    @pytest.fixture
    def cancel(self, site: LoginSite) -> Iterator[Callable[..., Answer]]:
        """Return a function that runs the command with a database that is not there."""
        with pytest.MonkeyPatch.context() as patch:
            where = f"sqlite:///{site.place}/nowhere/airflow.db"
            patch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", where)
            reconnect()
            yield lambda *words: site.call("cancel", "study", *words)
        reconnect()

    @pytest.mark.slow
    def test_remaining_work_is_reported(self, cancel: Callable[..., Answer]) -> None:
        answer = cancel()
        assert answer.status == 1
        assert answer.stdout == "0 runs stopped, 0 jobs cancelled\n"
        assert "Airflow's runs of study were not stopped" in answer.stderr

    @pytest.mark.slow
    def test_queued_jobs_are_cancelled_without_airflows_database(
        self, site: LoginSite, cancel: Callable[..., Answer]
    ) -> None:
        jobs = [job for job in site.run_sweep("first") if job.stage == "work"]
        rows = []
        for number, job in enumerate(jobs, 101):
            site.submitted(job, str(number))
            rows.append(f"queue|{number}|{attempt_of(job, 1).job_name}")
        site.command("squeue", "cat <<'EOF'\n" + "\n".join(rows) + "\nEOF")
        answer = cancel()
        assert answer.stdout == (
            "cancelled study.left.work\ncancelled study.right.work\n0 runs stopped, 2 jobs cancelled\n"
        )
        assert (site.slurm / "cancelled").read_text() == "101\n102\n"
        assert "Airflow's runs of study were not stopped" in answer.stderr

    @pytest.mark.slow
    @pytest.mark.parametrize("text", [None, "name: study\nstages: [\n"], ids=["deleted", "invalid"])
    def test_jobs_of_a_spec_that_is_gone_are_cancelled(
        self, site: LoginSite, cancel: Callable[..., Answer], text: str | None
    ) -> None:
        left, *_ = (job for job in site.run_sweep("first") if job.stage == "work")
        site.submitted(left, "101")
        site.queue((101, "RUNNING", attempt_of(left, 1).job_name))
        site.spec.unlink()
        if text is not None:
            site.spec.write_text(text)
        assert "left" in site.call("status", "study").stdout
        assert site.call("report", "study").status == 0
        answer = cancel()
        assert answer.stdout == "cancelled study.left.work\n0 runs stopped, 1 job cancelled\n"
        assert "the newest stored plan of study is used" in answer.stderr

    @pytest.mark.slow
    def test_jobs_whose_run_directory_was_deleted_are_cancelled(
        self, site: LoginSite, cancel: Callable[..., Answer]
    ) -> None:
        """Nothing else cancels them: a job that was queued ahead stays in the queue, and delays a later one."""
        left, right = (job for job in site.run_sweep("first") if job.stage == "work")
        name = attempt_of(left, 2).job_name
        of_another_checkout = f"{name.rpartition('.')[0]}.0123ab"
        site.queue(
            (101, "PENDING", name),
            (102, "RUNNING", of_another_checkout),
            (103, "RUNNING", "study.left.work.a1"),
            (104, "COMPLETING", attempt_of(left, 1).job_name),
            (105, "RUNNING", attempt_of(right, 1).job_name),
        )
        answer = cancel("--select", "left")
        assert answer.stdout == "cancelled study.left.work\n0 runs stopped, 1 job cancelled\n"
        assert (site.slurm / "cancelled").read_text() == "101\n"

    @pytest.mark.slow
    def test_an_unreachable_login_node_is_given_up_soon(
        self, site: LoginSite, cancel: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow_megatron.cli.runs.cancel.ANSWER_WINDOW_S", 3.0)
        site.submitted(site.run_sweep("first")[0], "101")
        site.server.stop()
        begin = time.monotonic()
        answer = cancel()
        assert time.monotonic() - begin < 30
        assert answer.status == 1
        last = answer.stderr.splitlines()[-1]
        assert last.startswith("not all jobs of study were cancelled: ")
        assert "cannot be reached" in last
        assert last.endswith("fix this and run the command again")

    @pytest.mark.slow
    def test_a_queue_that_cannot_be_read_is_given_up_soon(
        self, site: LoginSite, cancel: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.submitted(site.run_sweep("first")[0], "101")
        monkeypatch.setattr("airflow_megatron.cli.runs.cancel.ANSWER_WINDOW_S", 3.0)
        site.command("squeue", "echo slurmctld is away >&2; exit 1")
        begin = time.monotonic()
        answer = cancel()
        assert time.monotonic() - begin < 30
        assert answer.status == 1
        assert "jobs could not be cancelled: squeue: slurmctld is away" in answer.stderr.splitlines()[-1]

    @pytest.mark.slow
    def test_a_login_node_that_takes_long_is_reported(
        self, site: LoginSite, cancel: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("airflow_megatron.cli.runs.login_node._SILENCE_S", 0.5)
        site.submitted(site.run_sweep("first")[0], "101")
        site.command("squeue", "sleep 2")
        answer = cancel()
        assert answer.stderr.count("the login node of site has not answered for") == 1

    @pytest.mark.slow
    def test_a_wrong_cluster_does_not_stop_the_command(
        self, site: LoginSite, cancel: Callable[..., Answer]
    ) -> None:
        answer = cancel("--cluster", "sit")
        assert answer.status == 1
        assert "(did you mean 'site'?)" in answer.stderr
        assert "database" not in answer.stderr
