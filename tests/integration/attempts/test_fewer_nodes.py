"""A training that loses one of its two nodes continues from its checkpoint on the remaining node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from driven_job import DrivenJob, environment
from patience import patient, wait_until
from sweep_site import HELD

from airflow_megatron.megatron.logs.log_lines import IterationRecord, LogParser
from airflow_megatron.spec.documents.project import local_dir

if TYPE_CHECKING:
    from pathlib import Path

    from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.integration, pytest.mark.trainer]

SAVE_INTERVAL, LAST_ITERATION = 20, 200
SPEC = f"""\
name: shrunk
point: only
megatron: {{num_layers: 1, hidden_size: 32, num_attention_heads: 4, seq_length: 64, max_position_embeddings: 64,
  position_embedding_type: rope, micro_batch_size: 4, global_batch_size: 8, mock_data: true, num_workers: 0,
  tokenizer_type: NullTokenizer, vocab_size: 127, lr: 1e-3, lr_decay_style: constant, log_interval: 1,
  train_iters: {LAST_ITERATION}, save_interval: {SAVE_INTERVAL}, eval_iters: 0, save_retain_interval: 100}}
slurm: {{nodes: 2, time: 30m}}
restart: {{nodes: [1], shrink_after: 1, backoff: 0}}
wrapper: [bash, {HELD}, checkpoints/latest_checkpointed_iteration.txt, .]
stages:
  pretrain: {{kind: train}}
"""


def iterations(log: Path) -> list[IterationRecord]:
    parser = LogParser()
    records = [*parser.feed(log.read_bytes() if log.exists() else b""), *parser.finish()]
    return [record for record in records if isinstance(record, IterationRecord)]


def test_a_training_continues_on_the_remaining_node(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "venv-trainer").symlink_to(local_dir() / "venv-trainer")
    for name, value in environment(tmp_path, cluster).items():
        monkeypatch.setenv(name, value)
    run = tmp_path / "runs" / "shrunk" / "only"
    run.mkdir(parents=True)
    (run / "hold").touch()  # after the first checkpoint, until a node is lost
    job = DrivenJob(SPEC, "shrunk.only.pretrain")
    handle = job.submit()
    tracker = run / "checkpoints" / "latest_checkpointed_iteration.txt"
    with ThreadPoolExecutor(1) as watcher:
        watched = watcher.submit(job.watch, handle)
        wait_until(tracker.exists, 120, "the first checkpoint")
        nodes = cluster.slurm(
            "scontrol", "show", "hostnames", cluster.slurm("squeue", "-h", "-j", handle["job_id"], "-o", "%N")
        ).split()
        assert len(nodes) == 2
        cluster.control("kill", f"node:{nodes[1]}")
        (run / "hold").unlink(missing_ok=True)  # also removed when Slurm ends the task on the other node
        try:
            verdict = watched.result(timeout=patient(180))
        finally:
            cluster.control("start", f"slurmd:{nodes[1]}")
    assert (verdict["outcome"], verdict["attempt"], verdict["iteration"]) == ("finished", 2, LAST_ITERATION)
    columns = ("sacct", "-X", "-n", "-P", "-j", verdict["job_id"], "-o")
    wait_until(lambda: cluster.slurm(*columns, "State") == "COMPLETED", 60, "accounting to know of the end")
    assert cluster.slurm(*columns, "NNodes,NodeList") in {
        f"1|{node}" for node in ("n1", "n2", "n3", "n4")
    } - {f"1|{nodes[1]}"}
    before, after = (iterations(run / "logs" / f"pretrain-{number}.out") for number in (1, 2))
    assert after[0].iteration % SAVE_INTERVAL == 1
    assert after[0].iteration > 1
    assert after[0].iteration <= before[-1].iteration + 1
    assert after[-1].iteration == LAST_ITERATION
    assert {record.global_batch_size for record in (*before, *after)} == {8}
