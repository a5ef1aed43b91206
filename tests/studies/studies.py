"""The shipped studies, shrunk so that two cores train each in a minute: changed values and selected points.

The options are those of ``airflow-megatron … --set KEY=VALUE --select POINTS``; nothing else of a spec is changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRAINED = 10
"""Minimum number of iterations of each training."""

CONTEXT = "context parallelism needs Transformer Engine's attention"
FSDP = "Megatron-FSDP keeps parameters in CUDA buffers and streams"
DEEPSPEED = "Megatron-DeepSpeed has no environment here"

_LOCAL = ("cluster=local", "poll_interval=1")
_NETWORK = (
    *("megatron.num_layers=4", "megatron.hidden_size=64", "megatron.num_attention_heads=4"),
    *("megatron.seq_length=64", "megatron.num_workers=0"),
)
# the small text has four documents; upstream loops endlessly when it builds the index of a split without documents
_SPLIT = "megatron.split=2,1,1"
# upstream's distributed optimizer cannot be loaded without Apex and Transformer Engine
_OPEN_SCI = (
    *_LOCAL,
    *_NETWORK,
    *("megatron.ffn_hidden_size=128", "megatron.use_distributed_optimizer=false"),
    *("megatron.overlap_param_gather=false", "megatron.log_interval=1", "megatron.lr_warmup_iters=2"),
    *("params.gpus_per_node=1", "params.data_root={data}", "params.tokenizer={data}/tokenizer"),
    *("params.tasks_dir={data}/evaluation", "params.tasks=[heldout]", _SPLIT),
)
_BENCHMARK = (
    *_LOCAL,
    *_NETWORK,
    *(
        "megatron.vocab_size=500",
        f"benchmark.iterations={TRAINED}",
        "benchmark.skip=2",
        "max_active_points=2",
    ),
)
_SEARCH = (
    *("poll_interval=1", f"megatron.train_iters={TRAINED}", "megatron.log_interval=1"),
    "stages.search.megatron.train_iters=20",
    *("stages.pretrain.megatron.lr_warmup_iters=2", "stages.pretrain.megatron.eval_iters=2"),
)


def _without(settings: tuple[str, ...], *names: str) -> tuple[str, ...]:
    """Return the settings without those of arguments that the sweep gives at every point."""
    return tuple(word for word in settings if word.partition("=")[0].removeprefix("megatron.") not in names)


_TEXT = "20000"
"""Tokens of the shipped specs that prepare their own data."""


@dataclass(frozen=True)
class Study:
    """A shipped spec, shrunk.

    :param spec: its name
    :param settings: what is set, ``KEY=VALUE`` each; ``{data}`` is a folder of prepared text, ``{place}`` this folder
    :param select: the points that run; none when empty
    :param label: distinguishes the run from other runs of the same spec
    :param not_run: why the points that match a pattern do not run here
    """

    spec: str
    settings: tuple[str, ...] = ()
    select: str = ""
    label: str = ""
    not_run: dict[str, str] = field(default_factory=dict)


def _quickstart(select: str, *settings: str, label: str = "") -> Study:
    words = ["--output", "{{ run_dir }}/data", "--train-tokens", _TEXT, "--valid-tokens", "4000"]
    words += ["--test-tokens", "4000", "--heldout-pieces", "3", "--questions", "6"]
    command = ", ".join(f'"{word}"' for word in words)
    return Study(
        "quickstart",
        (
            "poll_interval=1",
            f'stages.prepare_data.command=["{{{{ python }}}}", "{{{{ megatron_lm_dir }}}}/prepare_data.py", {command}]',
            *("megatron.seq_length=64", "megatron.lr_warmup_iters=2", "megatron.eval_iters=2"),
            *("megatron.log_interval=1", "params.decay_fraction=0.5"),
            *("stages.pretrain.megatron.train_iters=20", "stages.pretrain.megatron.lr_decay_iters=24"),
            *("stages.pretrain.megatron.lr_wsd_decay_iters=4", "stages.pretrain.megatron.save_interval=5"),
            *("stages.pretrain.megatron.eval_interval=10", "stages.cooldown.megatron.eval_interval=10"),
            "stages.cooldown.for_each.budget=[20k, 30k]",
            *settings,
        ),
        select,
        label,
    )


STUDIES = (
    _quickstart("S_lr0.001"),
    _quickstart("M_lr0.004", "trainer=megatron_lm", label="trainer=megatron_lm"),
    Study(
        "decays",
        (
            *_OPEN_SCI,
            *("sweep.params.global_batch_size=[8]", "params.decay_fraction=0.5"),
            *("stages.stable.megatron.train_iters=30", "stages.stable.params.save_every=5120"),
            "stages.decay.for_each.budget=[10240, 15360]",
        ),
        "lr0.0005_gbs8",
    ),
    Study(
        "scaling_exps",
        (
            *_without(_OPEN_SCI, "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"),
            *("params.tokens=5120", "params.save_every_sequences=40", "params.cooldown_fraction=0.5"),
            *("sweep.groups.0.configs.0.num_layers=2", "sweep.groups.0.configs.0.hidden_size=64"),
            "sweep.groups.0.configs.0.ffn_hidden_size=128",
            "stages.cooldown.for_each.budget=[5120]",
        ),
        "c4_10M_lr0.001_*_bs4__withBias",
    ),
    Study(
        "datasets",
        (
            *_without(_OPEN_SCI, "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size"),
            *(f"sweep.groups.1.configs.0.{name}" for name in ("num_layers=2", "hidden_size=64")),
            *(
                f"sweep.groups.1.configs.0.{name}"
                for name in ("num_attention_heads=4", "ffn_hidden_size=128")
            ),
            *("params.tokens=2560", "megatron.micro_batch_size=4", "megatron.save_interval=10"),
            *(f"stages.{stage}.each_checkpoint.from_iteration=10" for stage in ("convert", "evaluate")),
        ),
        "c4_50M_withoutBias",
    ),
    Study(
        "tuning",
        (*_OPEN_SCI, f"sweep.defaults.train_iters={TRAINED}", "megatron.save_interval=10"),
        "small_batch_lr0.001_gbs64",
    ),
    Study(
        "mup_transfer",
        (
            *("poll_interval=1", f"megatron.train_iters={TRAINED}", "megatron.lr_warmup_iters=2"),
            *("megatron.eval_iters=2", "megatron.log_interval=1", "params.base_width=32"),
        ),
        "mup_d64_lr0.001,standard_d64_lr0.001",
    ),
    Study("optimizers", _SEARCH, "lion"),
    Study(
        "optimizers",
        (*_SEARCH, "trainer=megatron_lm", "sweep.params.optimizer=[adam, sgd]"),
        "adam",
        "trainer=megatron_lm",
    ),
    Study(
        "parallelism_gpt2_large",
        (*_BENCHMARK, "megatron.initial_loss_scale=1024"),
        "baseline,dp2,tp2,sp2,pp2",
        not_run={"cp*": CONTEXT},
    ),
    Study(
        "context_parallelism_gpt2_xl",
        (
            *_without(_BENCHMARK, "seq_length"),
            "sweep.defaults.seq_length=64",
            "env.PYTHONPATH={place}/out_of_memory",
        ),
        "r1_*",
        not_run={"r[2-8]_*": CONTEXT},
    ),
    Study(
        "parallelism_scaling",
        (*_BENCHMARK, "sweep.groups.1.groups.7.defaults.moe_grouped_gemm=false"),
        "dp2_weak,tp2_weak,sp2_weak,pp2_weak,vpp2_weak,ep2_weak",
        not_run={"cp*": CONTEXT, "fsdp*": FSDP},
    ),
    Study(
        "parallelism_model_scaling",
        (
            *_without(_BENCHMARK, "num_layers", "hidden_size", "num_attention_heads"),
            *(f"sweep.groups.0.configs.1.{name}" for name in ("num_layers=4", "hidden_size=64")),
            "sweep.groups.0.configs.1.num_attention_heads=4",
        ),
        "tp2_2.5B,sp2_2.5B,pp2_2.5B",
    ),
    Study(
        "gpt3_345m_one_gpu",
        (
            *_LOCAL,
            *_NETWORK,
            *(
                f"megatron.{name}"
                for name in (f"train_iters={TRAINED}", "save_interval=10", "eval_interval=10")
            ),
            *("megatron.attention_backend=unfused", "megatron.log_interval=1", "megatron.eval_iters=2"),
            *("megatron.initial_loss_scale=1024", "megatron.tokenizer_type=HuggingFaceTokenizer"),
            *(
                "megatron.tokenizer_model={data}/tokenizer",
                "megatron.vocab_file=null",
                "megatron.merge_file=null",
            ),
            *('megatron.data_path=["{data}/train_text_document"]', _SPLIT),
        ),
        "micro4",
    ),
    Study("large_batch_optimizers", not_run={"*": DEEPSPEED}),
)
