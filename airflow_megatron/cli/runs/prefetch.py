"""``prefetch``: fetch the items of a sweep's stages of kind ``prefetch`` on a login node."""

from __future__ import annotations

import sys

import typer

from airflow_megatron.cli.plans.spec_options import ClusterOption, SetOption, SpecArgument, load_own_spec


def prefetch(spec: SpecArgument, settings: SetOption = None, cluster: ClusterOption = None) -> None:
    """Fetch models, data sets and files on the login node of a sweep's cluster, for jobs without internet.

    It runs the commands of the sweep's stages of kind prefetch there, with the modules, the environment and the
    private files of their jobs. Secrets that Airflow delivers are available only to jobs. Existing items are skipped.
    The stages then need no internet.
    """
    from airflow_megatron.cli.runs.login_node import command_line_hook
    from airflow_megatron.plan.sweep_cluster import sweep_cluster
    from airflow_megatron.plan.sweep_plan import plan_sweep
    from airflow_megatron.slurm.remote.transport import TransportError
    from airflow_megatron.supervision.submission.login_commands import LONGEST_S, run_on_login_node

    sweep = load_own_spec(spec, settings)
    profile = sweep_cluster(sweep, cluster)
    jobs = [job for job in plan_sweep(sweep, profile, ()).jobs if job.stage_kind.fetches]
    if not jobs:
        print(f"{sweep.name} has no stage of kind prefetch with scope: sweep; add one", file=sys.stderr)
        raise typer.Exit(1)
    failed = False
    try:
        with command_line_hook(profile).session(LONGEST_S) as run:
            for job in jobs:
                print(f"{job.name}: on the login node of {profile.name}", flush=True)
                done = run_on_login_node(job, profile, run)
                print("\n".join(done.lines), flush=True)
                failed = failed or not done.succeeded
    except TransportError as error:
        print(f"not everything is fetched: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    if failed:
        print(
            f"not everything is fetched on {profile.name}; fix this and run the command again",
            file=sys.stderr,
        )
        raise typer.Exit(1)
