"""Lines from logs of real jobs, and their meaning."""

# ruff: noqa: E501 - log lines are as long as they are
from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processor_limits import processor_limit

from airflow_megatron.slurm.states.job_states import JobState
from airflow_megatron.slurm.states.observation import AccountingRow, Observation
from airflow_megatron.slurm.verdicts.outcomes import Outcome
from airflow_megatron.slurm.verdicts.restarts import GiveUp, Restart, RestartPolicy, next_step
from airflow_megatron.slurm.verdicts.signatures import (
    catalogue,
    find_signature,
    read_signatures,
    shipped_signatures,
)
from airflow_megatron.slurm.verdicts.verdict import Expectation, Verdict, judge
from airflow_megatron.spec.documents.errors import SpecError

NOW = 10_000.0
TRAIN = Expectation("train", train_iters=100, complete=lambda files: True)
COMMAND = Expectation("command", required_files=("/r/results.json",))
ROLLED_OVER, RETRYABLE, OOM, FAILED = (
    Outcome.ROLLED_OVER,
    Outcome.RETRYABLE,
    Outcome.OUT_OF_MEMORY,
    Outcome.FAILED,
)


def ended(
    log: str, state: JobState = JobState.FAILED, code: int = 1, expectation=TRAIN, **changes
) -> Verdict:
    row = AccountingRow("7", "x", state, state.value, code, 0, "n[1-4]", 4, ended=NOW - 100, elapsed=400)
    seen = Observation(
        time=NOW, queue_ok=True, accounting_ok=True, accounting=replace(row, **changes), tracker="50"
    )
    return judge(seen, expectation, log_tail=log.encode())


CASES = [
    ("unrecognized_arguments", FAILED, "[default0]:pretrain_gpt.py: error: unrecognized arguments: --foo 1"),
    ("not_prefetched", FAILED, "airflow-megatron: error: 1 of 3 items are not in /hf: task arc_easy; this job runs"),
    ("missing_start", FAILED, "airflow-megatron: error: there is no /r/old/checkpoints/iter_0000015, which the training starts from"),
    ("program_error", FAILED, "pretrain_gpt.py: error: the checkpoint /r/old/iter_0000010 is incomplete: it has no .metadata"),
    ("program_error", FAILED, "[rank0]:convert_to_hf.py: error: /r/old/checkpoints: there is no checkpoint of iteration 15"),
    ("program_error", FAILED, "evaluate_hf.py: error: /r/hf is no Hugging Face model"),
    ("checkpoints_not_processed", FAILED, "each_checkpoint: no directory matches /runs/*/checkpoints"),
    ("checkpoints_not_processed", FAILED, "each_checkpoint: '/runs/{x}' has a control character, a brace or a byte that is not UTF-8 in its name"),
    ("checkpoints_not_processed", FAILED, "each_checkpoint: '/r/a-/b' and '/r/a/-b' would both be named 'a--b'"),
    ("checkpoints_not_processed", FAILED, "each_checkpoint: there is no complete checkpoint in /runs/old"),
    ("secret_file", FAILED, "airflow-megatron: the secret HF_TOKEN: /home/me/.hf_token is not there"),
    ("missing_kernels", FAILED, "[rank0]: RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but the custom CUDA extension fused_weight_gradient_mlp_cuda module is not found. To use gradient_accumulation_fusion you must install APEX"),
    ("missing_kernels", FAILED, "[rank0]: AssertionError: persist_layer_norm not supported by torch LayerNorm when instantiating WrappedTorchNorm"),
    (
        "modules_not_loaded",
        FAILED,
        "airflow-megatron: the modules of the cluster profile were not loaded: status 1 of module load: CUDA/13",
    ),
    ("missing_module", FAILED, "[node07:0]:ModuleNotFoundError: No module named 'transformer_engine'"),
    ("disk_quota", FAILED, "OSError: [Errno 122] Disk quota exceeded: '/s/ck/iter_0000500'"),
    ("disk_full", RETRYABLE, "[rank0]: OSError: [Errno 28] No space left on device"),
    ("fp8_metadata", FAILED, "RuntimeError: Saved FP8 metadata does not match the current one"),
    (
        "dataset_files",
        FAILED,
        "[rank0]: AssertionError: One or both of the .idx and .bin files cannot be found at the path prefix /data/x",
    ),
    ("dataset_files", FAILED, "AssertionError: bad version, cannot read: /data/x.idx"),
    ("dataset_files", FAILED, "AssertionError: bad header, cannot read: /data/x.idx"),
    ("dataset_files", FAILED, "pretrain_gpt.py: error: /d/x.bin is cut off: it has 3 of 16 bytes; prepare the data again"),
    ("dataset_files", FAILED, "pretrain_gpt.py: error: /d/x.bin does not exist: data paths are prefixes of a .bin and"),
    ("dataset_cache", FAILED, "ValueError: mmap length is greater than file size"),
    ("dataset_cache", FAILED, "ValueError: buffer is smaller than requested size"),
    (
        "dataset_cache",
        FAILED,
        "[rank0]: ValueError: offset must be non-negative and no greater than buffer length (3000)",
    ),
    ("world_size_changed", FAILED, "CheckpointingException: Missing key in checkpoint state_dict: rerun_state_machine_state/shard_0_64."),
    ("checkpoint_file_missing", RETRYABLE, "[rank3]: FileNotFoundError: [Errno 2] No such file or directory: '/s/ck/iter_0019000/__12_1.distcp'"),
    ("checkpoint_file_missing", RETRYABLE, "FileNotFoundError: [Errno 2] No such file or directory: '/s/ck/global_step8/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt'"),
    ("checkpoint_not_loaded", FAILED, "[Errno 2] No such file or directory: '/s/ck/iter_0000004/mp_rank_00_001/model_optim_rng.pt'"),
    ("invalid_tracker", RETRYABLE, "ERROR: Invalid metadata file /r/old/latest_checkpointed_iteration.txt. Exiting"),
    ("gpu_occupied", RETRYABLE, "[node07:3]:torch.AcceleratorError: CUDA error: out of memory"),
    ("gpu_occupied", RETRYABLE, "ncclUnhandledCudaError: Failed to CUDA calloc 256 bytes"),
    ("cuda_out_of_memory", OOM, "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("cuda_out_of_memory", OOM, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB"),
    ("cuda_out_of_memory", OOM, "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB."),
    ("host_out_of_memory", OOM, "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed."),
    ("rendezvous", RETRYABLE, "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed"),
    ("rendezvous", RETRYABLE, "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to (n1, 29500)."),
    ("port_in_use", RETRYABLE, "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
    ("collective_timeout", RETRYABLE, "[rank5]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE) ran for 600001 milliseconds"),
    ("nccl_error", RETRYABLE, "torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1333, unhandled system error"),
    ("illegal_memory_access", RETRYABLE, "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("node_failure", RETRYABLE, "srun: error: Node failure on jpbo-002-07"),
    ("gpu_fell_off", RETRYABLE, "NVRM: Xid (PCI:0000:4e:00): 79, pid=1234, GPU has fallen off the bus."),
    ("no_gpu_on_node", RETRYABLE, "[n3:0]:RuntimeError: No CUDA GPUs are available"),
    ("file_system", RETRYABLE, "OSError: [Errno 116] Stale file handle: '/s/data/c4.bin'"),
    (
        "index_cache_unwritable",
        FAILED,
        "[rank0]: Exception: Failed to write dataset materials to the data cache directory. Please supply a directory",
    ),
    ("container", RETRYABLE, "slurmstepd: error: pyxis: container start failed with error code: 1"),
    ("stopped_by_sigterm", ROLLED_OVER, "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15"),
    ("terminated", RETRYABLE, "terminate called after throwing an instance of 'c10::Error'"),
    ("exception", FAILED, "[default0]:AssertionError: world size (3) is not divisible"),
    ("child_failed", FAILED, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
    ("task_exited", FAILED, "srun: error: n1: task 0: Exited with exit code 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "outcome", "line"), CASES)
def test_lines(name: str, outcome: Outcome, line: str) -> None:
    verdict = ended(f"iteration 5\n{line}\nsome more\n")
    assert (verdict.signature, verdict.outcome) == (name, outcome)
    assert verdict.line == line.strip()
    assert line.strip() in verdict.reason


def test_every_signature_is_reached_by_a_case_or_by_a_state() -> None:
    tested = {name for name, _, _ in CASES}
    by_state = {"exit_duration", "exit_signal", "exit_interval", "time_limit", "preempted"}
    by_state |= {"cancelled_for_node_failure", "cancelled_by_person", "checkpoint_cut_off"}
    rare = {"gpu_ecc_error", "rank_monitor", "checkpoint_unreadable", "nan_in_training", "userbuffers"}
    by_exit_code = {"missing_program"}
    assert {signature.name for signature in shipped_signatures()} == tested | by_state | by_exit_code | rare


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gpu_ecc_error", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        ("rank_monitor", "nvidia_resiliency_ext.fault_tolerance.RankMonitorClientError: no socket"),
        (
            "checkpoint_unreadable",
            "CheckpointingException: /s/ck/iter_0000500 is not a distributed checkpoint",
        ),
        ("nan_in_training", "AssertionError: Rank 3, node n1, device 3, iteration 12: Unexpected result nan"),
        ("userbuffers", "UB: timeout in push of rank 3"),
    ],
)
def test_rare_lines(name: str, line: str) -> None:
    assert ended(line).signature == name


def test_specific_before_generic() -> None:
    log = (
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
        "[rank0]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        "srun: error: n[1-4]: tasks 0-31: Exited with exit code 1\n"
    )
    assert ended(log).signature == "cuda_out_of_memory"
    assert ended(log.split("\n", 1)[1]).signature == "collective_timeout"
    assert ended(log.split("\n", 2)[2]).signature == "child_failed"


def test_the_cause_is_shown_rather_than_a_summary() -> None:
    log = (
        "convert_to_hf.py: error: /r/iter_0000010 has no .metadata\n"
        "each_checkpoint: iteration 10: exit code 2, 3.1 s\n"
        "each_checkpoint: failed for iterations 10\n"
    )
    assert ended(log, expectation=COMMAND).signature == "program_error"


def test_an_end_without_training_is_no_regular_stop() -> None:
    line = "ERROR: Invalid metadata file /r/old/latest_checkpointed_iteration.txt. Exiting"
    verdict = ended(line, JobState.COMPLETED, code=0)
    assert (verdict.signature, verdict.outcome) == ("invalid_tracker", RETRYABLE)


LOADING = " loading checkpoint from /s/ck at iteration 8\ncould not load the checkpoint\n"


@pytest.mark.parametrize(
    ("printed", "name", "outcome", "iteration"),
    [
        ("[Errno 22] Invalid argument", "checkpoint_cut_off", RETRYABLE, 8),
        (
            "PytorchStreamReader failed reading zip archive: failed finding central directory",
            "checkpoint_cut_off",
            RETRYABLE,
            8,
        ),
        (
            "[Errno 2] No such file or directory: '/s/ck/iter_0000008/mp_rank_01/model_optim_rng.pt'",
            "checkpoint_not_loaded",
            FAILED,
            None,
        ),
        ("Weights only load failed.", "checkpoint_not_loaded", FAILED, None),
        (
            "[Errno 116] Stale file handle: '/s/ck/iter_0000008/mp_rank_01/model_optim_rng.pt'",
            "file_system",
            RETRYABLE,
            None,
        ),
    ],
)
def test_a_checkpoint_in_the_format_torch_that_upstream_does_not_load(
    printed: str, name: str, outcome: Outcome, iteration: int | None
) -> None:
    """Upstream prints the exception, and exits with 0."""
    verdict = ended(f"{LOADING}{printed}\n", JobState.COMPLETED, code=0)
    assert (verdict.signature, verdict.outcome, verdict.damaged_iteration) == (name, outcome, iteration)


def test_an_error_of_a_program_is_no_reason_for_other_failures() -> None:
    log = "prefetch.py: error: gpt2: 404\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert ended(log).signature == "cuda_out_of_memory"


def test_an_optional_package_is_not_to_blame() -> None:
    log = "ModuleNotFoundError: No module named 'apex'\nDistBackendError: NCCL error in: x.cpp:1\n"
    assert ended(log).signature == "nccl_error"
    warned = ended(
        "WARNING: ModuleNotFoundError: No module named 'apex'\nsrun: error: n1: task 0: Exited with exit code 1\n"
    )
    assert warned.signature == "task_exited"


def test_exit_codes_come_before_generic_lines() -> None:
    log = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    assert ended(log, code=143).outcome is ROLLED_OVER
    assert ended(log, code=16).outcome is RETRYABLE
    assert ended("AssertionError: Rank 3: Unexpected result nan", code=16).outcome is RETRYABLE
    assert ended(log, code=1).outcome is FAILED


@pytest.mark.parametrize(
    ("state", "line", "outcome", "name"),
    [
        ("COMPLETED", "[default0]:[exiting program after 690.0159624854724 minutes] datetime: 2026-08-25 19:54:10 ", ROLLED_OVER, "exit_duration"),
        ("COMPLETED", "[exiting program after receiving SIGTERM.] datetime: 2026-08-25 19:54:10 ", ROLLED_OVER, "exit_signal"),
        ("COMPLETED", "[exiting program at iteration 400] datetime: 2026-08-25 19:54:10 ", ROLLED_OVER, "exit_interval"),
        ("TIMEOUT", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-30T22:59:07 DUE TO TIME LIMIT ***", ROLLED_OVER, "time_limit"),
        ("PREEMPTED", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-30T22:59:07 DUE TO PREEMPTION ***", RETRYABLE, "preempted"),
        ("NODE_FAIL", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-30T22:59:07 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", RETRYABLE, "cancelled_for_node_failure"),
        ("CANCELLED", "slurmstepd: error: *** JOB 1486215 ON n1 CANCELLED AT 2026-08-25T08:21:49 ***", Outcome.CANCELLED, "cancelled_by_person"),
        ("OUT_OF_MEMORY", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", OOM, "host_out_of_memory"),
        ("CANCELLED", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Outcome.CANCELLED, None),
        ("TIMEOUT", "Watchdog caught collective operation timeout", ROLLED_OVER, None),
    ],
)  # fmt: skip
def test_states_that_decide_by_themselves(state: str, line: str, outcome: Outcome, name: str | None) -> None:
    verdict = ended(line, JobState[state], code=0)
    assert (verdict.outcome, verdict.signature) == (outcome, name)
    assert verdict.line == (line.strip() if name else None)


def test_earlier_errors_do_not_change_an_orderly_stop() -> None:
    log = "NCCL WARN error in a retry\n[exiting program after 1.5 minutes] datetime: 2026-08-25 19:54:10 \n"
    assert ended(log, JobState.COMPLETED, code=0).signature == "exit_duration"


def test_a_command_does_not_roll_over() -> None:
    line = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 15"
    assert ended(line, expectation=COMMAND).outcome is FAILED


def test_blame_falls_on_the_right_node() -> None:
    assert ended("[n3:0]:RuntimeError: No CUDA GPUs are available").failed_nodes == ("n3",)
    assert ended("[default0]:RuntimeError: No CUDA GPUs are available").failed_nodes == ()
    assert ended("[n3:0]:torch.OutOfMemoryError: CUDA out of memory. Tried to allocate").failed_nodes == ()
    two = "srun: error: Node failure on n2\n[n3:0]:RuntimeError: No CUDA GPUs are available\n"
    assert ended(two).failed_nodes == ("n2",)
    alone = ended("Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.", JobState.NODE_FAIL, node_list="n1")
    assert alone.failed_nodes == ("n1",)


def test_damaged_checkpoint_is_named() -> None:
    verdict = ended(
        "FileNotFoundError: [Errno 2] No such file or directory: '/s/ck/iter_0019000/__12_1.distcp'"
    )
    assert verdict.damaged_iteration == 19000
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    "line",
    [
        "convert_to_hf.py: error: /s/iter_0000020 cannot be read: FileNotFoundError: [Errno 2] No such file or directory: '/s/iter_0000020/__0_1.distcp'",
        "CheckpointingException: /s/iter_0000020 is not a distributed checkpoint",
        " loading distributed checkpoint from /s at iteration 20\nEOFError",
    ],
)
def test_a_damaged_checkpoint_is_not_converted_again_and_again(line: str) -> None:
    """No attempt of a conversion repairs it; a training's own checkpoint is set aside before the next attempt."""
    verdict = ended(line, expectation=COMMAND)
    assert (verdict.outcome, verdict.damaged_iteration) == (FAILED, 20)
    assert isinstance(next_step([], verdict, RestartPolicy()), GiveUp)
    assert ended(line).outcome is RETRYABLE


def test_invalid_numbers_require_an_earlier_checkpoint() -> None:
    line = "AssertionError: Rank 3, node n1, device 3, iteration 12: Unexpected result nan"
    verdict = ended(line)
    assert (verdict.outcome, verdict.rollback) == (FAILED, True)
    assert not ended(line, expectation=COMMAND).rollback
    assert not ended(line, code=16).rollback  # Megatron needs another attempt to find the cause
    assert not ended("RuntimeError: shape").rollback


def test_a_checkpoint_that_cannot_be_loaded_is_named() -> None:
    loading = " loading distributed checkpoint from /r/checkpoints at iteration 20\n"
    loaded = "  successfully loaded checkpoint from /r/checkpoints [ t 1/1, p 1/1 ] at iteration 20\n"
    error = "[rank0]: EOFError\n"
    verdict = ended(loading + error)
    assert (verdict.outcome, verdict.damaged_iteration) == (RETRYABLE, 20)
    assert verdict.signature == "checkpoint_cut_off"
    assert ended(error).damaged_iteration is None
    assert ended(loading + loaded + error).damaged_iteration is None  # the file may be a data file
    again = ended(loading + loaded + loading.replace("20", "30") + error)
    assert again.damaged_iteration == 30
    assert ended(loading + "RuntimeError: shape mismatch").damaged_iteration is None
    cut_off = "[rank1]: OSError: [Errno 22] Invalid argument\n"  # of torch.load, under Megatron-DeepSpeed
    begun = f"airflow-megatron:{loading}"
    assert ended(begun + cut_off).damaged_iteration == 20
    done = (
        "[2026-11-21 21:20:22,183087][I][megatron/training:830] timers/load-checkpoint took 0.003 seconds\n"
    )
    assert ended(begun + done + cut_off).damaged_iteration is None


def test_permanent_failures_are_not_restarted() -> None:
    policy = RestartPolicy(failed=5, retryable=5)
    quota = ended("OSError: [Errno 122] Disk quota exceeded")
    assert quota.permanent
    step = next_step([], quota, policy)
    assert isinstance(step, GiveUp)
    assert "Disk quota exceeded" in step.reason
    assert isinstance(next_step([], ended("AssertionError: x"), policy), Restart)
    assert not ended("Disk quota exceeded", JobState.NODE_FAIL).permanent


def test_a_full_disk_is_retried_and_finally_given_up() -> None:
    full = ended("OSError: [Errno 28] No space left on device")
    assert (full.outcome, full.permanent) == (RETRYABLE, False)
    steps = [next_step([full] * past, full, RestartPolicy(backoff_s=30)) for past in range(4)]
    assert [step.delay_s for step in steps if isinstance(step, Restart)] == [30, 60, 120]
    assert isinstance(steps[3], GiveUp)


@pytest.mark.parametrize(
    "line",
    [
        "/var/spool/slurmd/job00007/slurm_script: line 92: /envs/train/bin/python: No such file or directory",
        "/var/spool/slurmd/job00007/slurm_script: line 92: ./train.sh: Permission denied",
        "/var/spool/slurmd/job00007/slurm_script: line 92: /envs/train: Is a directory",
        "bash: line 1: torchrun: command not found",
        "/tmp/script.7: 53: torchrun: not found",
        "script.sh: line 3: ./a.out: cannot execute binary file: Exec format error",
        "env: \N{LEFT SINGLE QUOTATION MARK}python3.12\N{RIGHT SINGLE QUOTATION MARK}: No such file or directory",
    ],
)
def test_a_program_that_does_not_exist(line: str) -> None:
    """Only the exit code shows that such a line is decisive: scripts continue after most of them."""
    log = f"ValueError: nothing\n{line}\n"
    for code in (126, 127):
        verdict = ended(log, code=code, expectation=COMMAND)
        assert (verdict.outcome, verdict.signature) == (FAILED, "missing_program")
        assert line in verdict.reason
    assert ended(log, code=1, expectation=COMMAND).signature == "exception"
    assert ended("Traceback\nKeyError: 'a'\n", code=127, expectation=COMMAND).signature == "exception"


SITE = """\
signatures:
  - name: site_fabric
    pattern: 'libfabric: .* unreachable'
    outcome: retryable
    reason: the fabric of this site failed
    blames_node: true
  - name: disk_quota
    pattern: 'Disk quota exceeded'
    outcome: retryable
    reason: quotas are raised every night here
"""


def test_site_file(tmp_path: Path) -> None:
    path = tmp_path / "signatures.yaml"
    path.write_text(SITE)
    signatures = catalogue([path])
    assert [one.name for one in signatures[:2]] == ["site_fabric", "disk_quota"]
    assert len(signatures) == len(shipped_signatures()) + 1
    quota = find_signature(signatures, b"Disk quota exceeded", JobState.FAILED)
    assert quota is not None
    assert not quota.signature.permanent
    fabric = find_signature(signatures, b"[n9:1]:libfabric: n4 unreachable: NCCL error", JobState.FAILED)
    assert fabric is not None
    assert (fabric.signature.name, fabric.node) == ("site_fabric", "n9")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("outcome: retryable", "outcome: finished"), "outcome is 'finished'"),
        (
            ("pattern: 'libfabric: .* unreachable'", "pattern: '(a'"),
            "the pattern is not a regular expression: missing ): (a (",
        ),
        (("pattern: 'libfabric: .* unreachable'", "pattern: 'a)(b'"), "expression: unexpected ): a)(b ("),
        (("pattern: 'libfabric: .* unreachable'", "pattern: '.*'"), "matches an empty line"),
        (("blames_node: true", "blames_node: maybe"), "write true or false"),
        (("blames_node: true", "blame_node: true"), "did you mean 'blames_node'"),
        (("blames_node: true", "states: [DONE]"), "states is"),
        (("blames_node: true", "exit_codes: [a]"), "a list of numbers from 1 to 255"),
        (("name: site_fabric", "name: disk_quota"), "listed twice"),
        (("name: site_fabric", "name: Site Fabric"), "lower-case"),
        (("    reason: the fabric of this site failed\n", ""), "'reason' has to be text"),
        (("signatures:", "signature:"), "one key"),
    ],
)
def test_wrong_site_file(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    path = tmp_path / "signatures.yaml"
    path.write_text(SITE.replace(*change, 1))
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        read_signatures(path)
    assert str(caught.value).startswith(str(path))


@given(st.binary(max_size=2000), st.sampled_from([state for state in JobState if state.ended]))
def test_any_log(log: bytes, state: JobState) -> None:
    finding = find_signature(shipped_signatures(), log, state)
    assert finding is None or state in finding.signature.states


def test_long_tails_are_searched_quickly() -> None:
    tail = (b"x: error " * 5000 + b"\n") + b" [2026-02-26 10:00:00] iteration 5/ 10 | lm loss: 1 |\n" * 1300
    with processor_limit(2):
        assert find_signature(shipped_signatures(), tail, JobState.FAILED) is None


LOGS = Path(__file__).parents[2] / "fixtures" / "logs"


@pytest.mark.parametrize(
    ("log", "signature", "line"),
    [
        ("kill", "child_failed", "Signal 9 (SIGKILL) received by PID"),
        ("segv", "child_failed", "Signal 11 (SIGSEGV) received by PID"),
        ("exit", "child_failed", "rank 1 on localhost ended with exit code 3"),
        ("raise", "nan_in_training", "[rank1]: RuntimeError: boom: found NaN"),
        ("record", "nan_in_training", "RuntimeError: boom: found NaN"),
        ("oom", "cuda_out_of_memory", "[rank1]: torch.OutOfMemoryError: CUDA out of memory."),
    ],
)
def test_the_rank_that_torchrun_names_is_the_cause(log: str, signature: str, line: str) -> None:
    """Logs of real runs of two ranks, of which rank 1 fails; rank 0 loses its connection."""
    verdict = ended((LOGS / f"torchrun-{log}.log").read_text())
    assert verdict.signature == signature
    assert verdict.line.startswith(line)


TABLE = """Failures:
[1]:
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 22)
  error_file: <N/A>
  traceback : RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_07:33:01
  host      : n2.example.org
  rank      : 5 (local_rank: 1)
  exitcode  : {exit} (pid: 24101)  {signal}
  error_file: <N/A>
  traceback : {traceback}
============================================================
"""


@pytest.mark.parametrize(
    ("lines", "exit_", "signal", "signature"),
    [
        ("[rank0]: torch.distributed.DistBackendError: NCCL error: remote process exited", -9, "(SIGKILL)", "child_failed"),
        ("NCCL WARN Connect failed: error", -11, "(SIGSEGV)", "child_failed"),
        ("[rank0]: RuntimeError: Connection closed by peer\n[rank5]: KeyError: 'lr'", 1, "", "exception"),
        ("[default0]:ValueError: no\n[default1]:KeyError: 'lr'", 1, "", "exception"),
        ("[n1:1]:ValueError: no\n[n2:1]:KeyError: 'lr'", 1, "", "exception"),
        ("3: [rank0]: No space left on device\n1: [rank5]: KeyError: 'lr'", 1, "", "exception"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", -9, "(SIGKILL)", "host_out_of_memory"),
        # rank 5 printed no error, so the errors of other ranks are the best evidence
        ("[rank0]: NCCL error: unhandled system error", 1, "", "cuda_out_of_memory"),
    ],
)  # fmt: skip
def test_errors_of_other_ranks_do_not_decide(lines: str, exit_: int, signal: str, signature: str) -> None:
    traceback = "Signal received" if signal else "To enable traceback see: https://pytorch.org"
    verdict = ended(f"{lines}\n" + TABLE.format(exit=exit_, signal=signal, traceback=traceback))
    assert verdict.signature == signature
    if signature == "exception":
        assert verdict.line.endswith("KeyError: 'lr'")
        assert "rank 5 on n2.example.org ended with exit code 1" in verdict.reason


def test_the_first_of_several_nodes_tables_counts() -> None:
    table = TABLE.format(exit=-9, signal="(SIGKILL)", traceback="Signal 9")
    later = (
        table.replace("07:33:01", "07:33:40")
        .replace("rank      : 5", "rank      : 9")
        .replace("SIGKILL", "SIGABRT")
    )
    for text in (table + later, later + table):
        assert "rank 5 on n2.example.org was ended by SIGKILL" in ended(text).reason


@pytest.mark.parametrize("pattern", ["(?!x)a", r"(a)\1", "a(", "(?<=b)a"])
def test_what_re2_does_not_know_is_refused(tmp_path: Path, pattern: str) -> None:
    file = tmp_path / "own.yaml"
    entry = {"name": "own", "pattern": pattern, "outcome": "failed", "reason": "because"}
    file.write_text(json.dumps({"signatures": [entry]}))
    with pytest.raises(SpecError, match="not a regular expression"):
        read_signatures(file)


@pytest.mark.parametrize("between", ["\r", "\r\n", ""])
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("host_out_of_memory", "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch."),
        ("cuda_out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_a_cause_behind_a_long_progress_bar_is_found(name: str, line: str, between: str) -> None:
    """A bar that is not closed shares its line with the next message."""
    bar = "".join(f"\r{number:3d}%|####      | {number}/100 [00:10<00:20, 10.5it/s]" for number in range(100))
    assert len(bar) > 4096
    assert ended(f"start\n{bar}{between}{line}\n").signature == name
