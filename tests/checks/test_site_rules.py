"""The profiles of real sites: a chain passes on each, and each rule refuses jobs beyond its limit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checked_chain import TRUNK
from site_profiles import VARIABLES, at_the_limit, beyond, jobs_beyond, only_warns, planned, profile, reported

from airflow_megatron.cli.setup.new_project import site_names
from airflow_megatron.plan.job_scripts import job_script
from airflow_megatron.plan.sweep_plan import check_sweep
from airflow_megatron.requirements.queue_estimates import site_cost
from airflow_megatron.spec.documents.errors import SpecError
from airflow_megatron.spec.documents.project import project_root
from airflow_megatron.spec.documents.quantities import parse_duration
from airflow_megatron.spec.documents.shipped_files import shipped
from airflow_megatron.spec.model.schema import LimitsSection, SiteRuleSection, StorageSection
from airflow_megatron.spec.spec_files import load_sweep_text
from airflow_megatron.spec.trust.permitted_variables import SETTING

DIRECTIVES = Path(__file__).with_name("site_directives.txt")
RULES = [
    (site, index, line.strip().removeprefix("- rule: "))
    for site in site_names()
    for index, line in enumerate(
        line
        for line in (shipped("sbatch") / "sites" / f"{site}.yaml").read_text().splitlines()
        if line.startswith("  - rule: ")
    )
]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, ",".join(VARIABLES))
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("site", "index", "text"), RULES)
def test_each_rule_holds_at_its_limit_and_names_its_source_beyond(site: str, index: int, text: str) -> None:
    cluster = profile(site)
    rule = cluster.rules[index]
    assert rule.rule == text
    quoted = f"the site's rule: {rule.rule} ({rule.source}, read {rule.read}"
    assert quoted not in "".join(reported(cluster, at_the_limit(rule), jobs_beyond(rule) - 1 or 1))
    errors, warnings = reported(*beyond(rule, cluster), jobs_beyond(rule))
    found = warnings if only_warns(rule) else errors
    assert quoted in found
    assert ("unverified" in found) == (not rule.verified)


@pytest.mark.parametrize("site", site_names())
def test_a_chain_passes_on_each_site_and_its_script_parses(site: str, tmp_path: Path) -> None:
    cluster = profile(site)
    gpus = cluster.slurm.gpus_per_node
    text = TRUNK.replace(
        "slurm: {nodes: 2, gpus_per_node: 4, time: 6h}", f"slurm: {{nodes: {8 // int(str(gpus))}, time: 2h}}"
    )
    text = text.replace(
        "slurm: {nodes: 1, gpus_per_node: 1, time: 30m}",
        f"slurm: {{nodes: 1, gpus_per_node: {gpus}, time: 30m}}",
    )
    plan = check_sweep(load_sweep_text(text, "s.yaml"), cluster)
    assert not [warning for warning in plan.warnings if "site's rule" in str(warning)]
    job = next(job for job in plan.jobs if job.stage == "pretrain")
    script = job_script(job, cluster, 1)
    assert "#SBATCH --account=project_1" in script
    for refused in (name for rule in cluster.rules for name in rule.refused_options):
        assert f"#SBATCH --{refused}" not in script
    (tmp_path / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", str(tmp_path / "job.sh")], check=True)


@pytest.mark.slow
def test_scripts_of_sites_are_clean_and_ask_for_what_they_asked_before(tmp_path: Path) -> None:
    """``site_directives.txt`` holds the requests of each site's script; a change of them must be meant."""
    found: list[str] = []
    for site in site_names():
        cluster = profile(site)
        script = job_script(planned(cluster, {"nodes": 2, "time": "10m"}).jobs[0], cluster, 1)
        (tmp_path / f"{site}.sh").write_text(script)
        requests = [line for line in script.splitlines() if line.startswith("#SBATCH") and "/" not in line]
        found += [f"# {site}", *requests[1:]]
    # scripts of other kinds of jobs use the variables that this one does not
    shellcheck = [str(Path(sys.executable).with_name("shellcheck")), "--severity=warning", "--exclude=SC2034"]
    scripts = sorted(map(str, tmp_path.glob("*.sh")))
    checked = subprocess.run([*shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    assert found == DIRECTIVES.read_text().splitlines()


def test_the_gpu_request_of_a_profile_is_judged_too() -> None:
    cluster = profile("vista")
    slurm = {"nodes": 1, "gpus_per_node": 1, "time": "10m"}
    assert reported(cluster, slurm)[0] == ""
    errors, _ = reported(cluster.model_copy(update={"gpu_option": "gres"}), slurm)
    assert "gives sbatch --gres; the site's rule: --gres is not supported" in errors
    assert "change gpu_option in the cluster profile" in errors
    errors, _ = reported(cluster, {**slurm, "mem": "64G"})
    assert "remove slurm.mem" in errors


def test_a_profile_needs_the_permission_to_read_the_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "OUTPUT_DIR,CONTAINER_CACHE_DIR,HF_HOME")
    with pytest.raises(SpecError, match=f"add SLURM_ACCOUNT to {SETTING}"):
        profile("lumi-g")


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTPUT_DIR")
    with pytest.raises(
        SpecError, match=r"lumi-g.yaml:\d+:\d+: the environment variable OUTPUT_DIR is not set"
    ):
        profile("lumi-g")


def test_of_several_partitions_one_must_fit() -> None:
    cluster = profile("frontier")
    long = {"nodes": 4, "time": "20h"}
    assert "batch runs a job of up to 91 nodes" in reported(cluster, {**long, "partition": "batch"})[0]
    assert reported(cluster, {**long, "partition": "batch,extended"})[0] == ""
    errors, _ = reported(cluster, {**long, "nodes": 70, "partition": "batch,extended"})
    assert errors.count("the site's rule") == 1


def test_rules_about_small_jobs_and_qualities_of_service() -> None:
    about = {"source": "https://site.example", "read": "2026-11"}
    rules = [
        SiteRuleSection(rule="large jobs have two nodes or more", qos=["large"], min_nodes=2, **about),
        SiteRuleSection(rule="debug runs for at most 30 minutes", qos=["debug"], max_time="30m", **about),
    ]
    cluster = profile("vista").model_copy(update={"rules": rules})
    small: dict[str, Any] = {"nodes": 1, "time": "1h", "gpus_per_node": 1}
    assert reported(cluster, small)[0] == ""
    errors, _ = reported(cluster, {**small, "qos": "large"})
    assert "requests 1 node; the site's rule: large jobs have two nodes or more" in errors
    assert reported(cluster, {**small, "nodes": 2, "qos": "large"})[0] == ""
    errors, _ = reported(cluster, {**small, "qos": "debug"})
    assert 'time: "00:30:00"' in errors


def test_a_rule_that_counts_jobs_of_a_quality_of_service() -> None:
    about = {"source": "https://site.example", "read": "2026-11"}
    rules = [SiteRuleSection(rule="debug takes 2 jobs of a user", qos=["debug"], max_jobs=2, **about)]
    cluster = profile("vista").model_copy(update={"rules": rules})
    points = "sweep: {lr: [1e-3, 2e-3, 3e-3]}\nstages:\n  work: {kind: command, command: ['true']}\n"

    def warned(qos: str, more: str = "") -> list[str]:
        plan = planned(cluster, {"nodes": 1, "time": "10m", "qos": qos}, more + points)
        return [str(warning) for warning in plan.warnings if "site's rule" in str(warning)]

    assert warned("normal") == []
    (warning,) = warned("debug")
    assert "up to 3 jobs can be due at once; the site's rule: debug takes 2 jobs of a user" in warning
    assert "https://site.example, read 2026-11" in warning
    assert "max_jobs: 2 in the spec" in warning
    assert warned("debug", "max_jobs: 2\n") == []
    assert warned("debug", "max_active_points: 2\n") == []


def test_rules_about_what_runs_at_the_same_time() -> None:
    about = {"source": "https://site.example", "read": "2026-11"}
    rules = [
        SiteRuleSection(rule="4 jobs of a user run", qos=["few"], max_running=4, **about),
        SiteRuleSection(rule="a user gets 10 nodes", qos=["small"], max_running_nodes=10, **about),
    ]
    cluster = profile("vista").model_copy(update={"rules": rules, "limits": LimitsSection()})
    slurm: dict[str, Any] = {"nodes": 2, "time": "1h", "gpus_per_node": 1}
    for qos, most in (("few", 4), ("small", 5)):
        assert reported(cluster, {**slurm, "qos": qos}, most) == ("", "")
    errors, warnings = reported(cluster, {**slurm, "qos": "few"}, 5)
    assert errors == ""
    assert (
        "up to 5 jobs can be due at once, of which 4 run; the site's rule: 4 jobs of a user run" in warnings
    )
    errors, warnings = reported(cluster, {**slurm, "qos": "small"}, 6)
    assert errors == ""
    assert (
        "6 jobs can be due at once, with 12 nodes, of which 10 run jobs; the site's rule: a user" in warnings
    )
    assert reported(cluster, {**slurm, "nodes": 10, "qos": "small"}) == ("", "")
    errors, _ = reported(cluster, {**slurm, "nodes": 11, "qos": "small"})
    assert "requests 11 nodes; the site's rule: a user gets 10 nodes" in errors
    assert "would never start" in errors


@pytest.mark.parametrize(
    ("run_root", "errors", "warnings"),
    [
        ("/home1/0/me/runs", 1, 0),
        ("/home1", 1, 0),
        ("/home1/../work/me", 0, 1),
        ("/home10/runs", 0, 0),
        ("/scratch/home1/runs", 0, 0),
    ],
)
def test_run_roots_on_file_systems_that_are_not_for_jobs(run_root: str, errors: int, warnings: int) -> None:
    cluster = profile("vista").model_copy(update={"run_root": run_root})
    refused, warned = reported(cluster, {"nodes": 1, "time": "10m", "gpus_per_node": 1})
    assert (refused.count("the site's rule"), warned.count("the site's rule")) == (errors, warnings)
    if errors:
        assert (
            f"run_root of cluster vista is {run_root}; the site's rule: jobs must not run in $HOME" in refused
        )
        assert "conduct.md, read 2026-11-25" in refused


@pytest.mark.parametrize("site", site_names())
def test_the_folder_that_the_page_of_a_site_names_is_for_jobs(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (project_root() / "docs" / "sites" / f"{site}.md").read_text()
    (folder,) = re.findall(r"^    export OUTPUT_DIR=(\S+)$", page, re.MULTILINE)
    monkeypatch.setenv("OUTPUT_DIR", folder.replace("$", ""))
    slurm = {"nodes": 1, "time": "10m"}
    assert "run_root of cluster" not in "".join(reported(profile(site), slurm))


def test_a_limit_that_some_qualities_of_service_lift() -> None:
    cluster = profile("leonardo")
    long = {"nodes": 1, "time": "48h"}
    assert "boost_usr_prod runs a job for at most 24 hours" in reported(cluster, long)[0]
    assert "at most 24 hours" in reported(cluster, {**long, "qos": "boost_qos_dbg"})[0]
    assert reported(cluster, {**long, "qos": "boost_qos_lprod"})[0] == ""


def test_advice_of_a_site_is_a_warning() -> None:
    about = {"source": "https://site.example", "read": "2026-11"}
    text = "jobs leave --constraint out"
    advised = SiteRuleSection(rule=text, refused_options=["constraint"], advice=True, **about)
    cluster = profile("vista")
    slurm: dict[str, Any] = {"nodes": 1, "time": "10m", "gpus_per_node": 1, "constraint": "fast"}
    errors, warnings = reported(cluster.model_copy(update={"rules": [advised]}), slurm)
    assert errors == ""
    assert "gives sbatch --constraint; the site's rule: jobs leave --constraint out" in warnings
    ruled = advised.model_copy(update={"advice": False})
    assert "jobs leave --constraint out" in reported(cluster.model_copy(update={"rules": [ruled]}), slurm)[0]


@pytest.mark.parametrize("site", ["clariden", "frontier", "leonardo", "lumi-g", "perlmutter", "vista"])
def test_a_sweep_that_can_take_longer_than_files_are_kept(site: str) -> None:
    cluster = profile(site)
    storage = cluster.storage
    assert storage is not None
    kept_h = int(parse_duration(str(storage.purge_after)) / 3600)
    text = "max_active_points: 2\nsweep: {lr: [1, 2, 3]}\nstages:\n  a: {kind: command, command: ['true']}\n"
    text += "  b: {kind: command, parent: a, command: ['true']}\n"
    no_rules = cluster.model_copy(update={"rules": [], "limits": LimitsSection()})

    def warned(hours: int) -> list[str]:
        plan = planned(no_rules, {"nodes": 1, "time": f"{hours}h"}, text)
        return [str(warning) for warning in plan.warnings if "deletes files" in str(warning)]

    # two turns of two stages
    assert warned(kept_h // 4) == []
    (warning,) = warned(kept_h // 4 + 12)
    assert (
        f"cluster {site} deletes files without access for {kept_h / 24:g} days ({storage.source}, read"
        in warning
    )
    assert "2 points at a time" in warning
    assert "raise max_active_points" in warning


def test_trainings_of_a_profile_with_a_layout_of_checkpoints() -> None:
    cluster = profile("clariden")
    jobs = check_sweep(load_sweep_text(TRUNK, "s.yaml"), cluster).jobs
    assert {job.stage for job in jobs if "\nam_set_layout " in job_script(job, cluster, 1)} == {
        job.stage for job in jobs if job.trains
    }
    training = next(job for job in jobs if job.trains)
    (line,) = [
        line for line in job_script(training, cluster, 1).splitlines() if line.startswith("am_set_layout ")
    ]
    assert line == (
        f"am_set_layout {training.checkpoint_dir} --component-end 4M --stripe-count 1 --component-end 64M"
        " --stripe-count 4 --component-end -1 --stripe-count 32 --stripe-size 4M"
    )
    without = cluster.model_copy(update={"storage": StorageSection(purge_after="30d")})
    assert "setstripe" not in job_script(training, without, 1)


@pytest.mark.parametrize(
    ("site", "slurm", "cost"),
    [
        ("frontier", {"nodes": 2, "time": "1h", "gpus_per_node": 1}, 2),
        ("frontier", {"nodes": 1, "time": "1h", "gpus_per_node": 0}, 1),
        ("lumi-g", {"nodes": 1, "time": "1h", "gpus_per_node": 1}, 4),
        ("lumi-g", {"nodes": 1, "time": "1h", "gpus_per_node": 1, "partition": "small-g"}, 0.5),
        ("lumi-g", {"nodes": 1, "time": "1h", "gpus_per_node": 1, "partition": "small-g,standard-g"}, 4),
        ("vista", {"nodes": 3, "time": "2h", "partition": "gg"}, 3 * 2 * 0.33),
        ("vista", {"nodes": 4, "time": "5m"}, 1),
        ("vista", {"nodes": 4, "time": "15m"}, 1),
        ("vista", {"nodes": 4, "time": "30m"}, 2),
    ],
)
def test_what_sites_charge(site: str, slurm: dict[str, Any], cost: float) -> None:
    cluster = profile(site).model_copy(update={"rules": []})
    assert cluster.billing is not None
    assert site_cost(planned(cluster, slurm).jobs, cluster.billing).hours == pytest.approx(cost)
