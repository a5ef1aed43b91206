"""Rules of features that need a Python package: restarts without a new job, fault tolerance, reinforcement learning.

Each was observed in ``pretrain_gpt.py`` of core_v0.16.1; the imports of the later releases were compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_megatron.megatron.rules.rule import Rule
from airflow_megatron.megatron.validation.upstream_rules.local_layers import lacks
from airflow_megatron.megatron.validation.upstream_rules.schedule import trains

if TYPE_CHECKING:
    from airflow_megatron.megatron.rules.rule import Topic
    from airflow_megatron.megatron.rules.settings import Settings

RESILIENCY: Final = "nvidia_resiliency_ext"
AUTORESUME: Final = "userlib"
FAULT_TOLERANCE: Final = "megatron/training/ft_integration.py setup"

_OF_REINFORCEMENT: Final = ("wandb", "fastapi", "uvicorn", "httpx")


def _lacking_for_reinforcement(s: Settings) -> list[str]:
    """Return the packages without which ``megatron.rl`` cannot be imported."""
    return [
        name
        for name in (*_OF_REINFORCEMENT, "transformers" if s.release < (0, 17) else "openai")
        if s.machine.is_complete and lacks(s, name)
    ]


def _has_unordered_timeouts(s: Settings) -> bool:
    soft, barrier, heartbeat = (
        s.inprocess_soft_timeout,
        s.inprocess_barrier_timeout,
        s.inprocess_heartbeat_timeout,
    )
    return not (
        soft < s.inprocess_hard_timeout < barrier
        and s.inprocess_heartbeat_interval < heartbeat < barrier
        and s.inprocess_monitor_process_interval < min(soft, barrier, heartbeat)
        and s.inprocess_monitor_thread_interval < soft
        and soft > 1  # the watchdog's interval, for which upstream has an argument that it does not use
    )


def _logs_device(s: Settings) -> bool:
    """Return whether the training reports the state of its GPU.

    It reports memory after the first iteration too, and stragglers only where the log interval divides the iteration.
    """
    short = s.train_iters and s.train_iters < s.log_interval
    return bool(trains(s) and (s.log_device_memory_used or (s.log_straggler and not short)))


PACKAGES: Topic = (
    Rule(
        "setup.wandb",
        # the last rank imports it, also with WANDB_MODE=disabled
        lambda s: s.wandb_project and s.machine.is_complete and lacks(s, "wandb"),
        "--wandb-project needs the package wandb, which the profile does not name",
        "drop it; or name wandb among the packages, where it is installed",
        "megatron/training/global_vars.py _set_wandb_writer",
    ),
    Rule(
        "setup.autoresume",
        # its module is NVIDIA's own; without it the program ends with exit code 0, which no log calls a failure
        lambda s: (
            s.adlr_autoresume
            and AUTORESUME not in s.machine.packages
            and "SUBMIT_SCRIPTS" not in s.machine.environment
        ),
        f"--adlr-autoresume needs the package {AUTORESUME} of NVIDIA's clusters: without it the program ends before it "
        "trains, with exit code 0",
        f"drop it; or name the folder of {AUTORESUME} in the environment variable SUBMIT_SCRIPTS",
        "megatron/training/global_vars.py _set_adlr_autoresume",
    ),
    Rule(
        "setup.fault-tolerance",
        lambda s: s.enable_ft_package and RESILIENCY not in s.machine.packages,
        f"--enable-ft-package needs the package {RESILIENCY}",
        f"drop it; or name {RESILIENCY} among the packages, where it is installed",
        FAULT_TOLERANCE,
        since=(0, 16),
    ),
    Rule(
        "setup.fault-tolerance-save",
        lambda s: s.enable_ft_package and not s.save,
        "--enable-ft-package needs --save, for the folder of its state",
        "give --save",
        FAULT_TOLERANCE,
        since=(0, 16),
    ),
    Rule(
        "setup.in-process-timeouts",
        lambda s: s.inprocess_restart and RESILIENCY in s.machine.packages and _has_unordered_timeouts(s),
        "the times of --inprocess-restart are not in order: --inprocess-soft-timeout {inprocess_soft_timeout} below "
        "--inprocess-hard-timeout {inprocess_hard_timeout} below --inprocess-barrier-timeout "
        "{inprocess_barrier_timeout}; --inprocess-heartbeat-interval {inprocess_heartbeat_interval} below "
        "--inprocess-heartbeat-timeout {inprocess_heartbeat_timeout} below the barrier; "
        "--inprocess-monitor-process-interval {inprocess_monitor_process_interval} and "
        "--inprocess-monitor-thread-interval {inprocess_monitor_thread_interval} below the others",
        "drop them, for the defaults: 60, 90 and 120 s; 30 and 60 s; 1 and 1 s",
        "nvidia_resiliency_ext/inprocess/wrap.py Wrapper",
        since=(0, 16),
    ),
    Rule(
        "setup.reinforcement-packages",
        lambda s: s.perform_rl_step and _lacking_for_reinforcement(s),
        "--perform-rl-step needs packages of megatron.rl which the profile does not name: RL cannot run without the "
        "megatron.rl package",
        lambda s: (
            f"drop it; or name {', '.join(_lacking_for_reinforcement(s))} among the packages, where they are installed"
        ),
        "megatron/training/training.py train, megatron/rl/rl_utils.py",
        since=(0, 16),
    ),
    Rule(
        "setup.reinforcement-environments",
        lambda s: s.perform_rl_step and s.langrl_env_config is None,
        "--perform-rl-step needs --langrl-env-config, the file of its environments",
        "give --langrl-env-config",
        "megatron/rl/rl_utils.py get_agent",
        since=(0, 16),
    ),
    Rule(
        "iteration.device-state",
        lambda s: (
            _logs_device(s)
            and s.machine.is_complete
            and lacks(s, "pynvml")
            and "amdsmi" not in s.machine.packages
        ),
        "--log-device-memory-used and --log-straggler need the package pynvml (of nvidia-ml-py), which the profile "
        "does not name",
        "drop it; or name pynvml (amdsmi on GPUs of AMD) among the packages, where it is installed",
        "megatron/training/utils.py report_memory, megatron/core/utils.py StragglerDetector",
        since=(0, 16),
    ),
)
