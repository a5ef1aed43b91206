"""Check an environment of jobs, and compile what jobs import: ``check_environment.py``.

It prints the versions of torch and megatron-core, and fails if one of them cannot be imported. Then it imports the
other modules of jobs. Python compiles a module when it is first imported, so that jobs that start together do not
compile the same files, and most of the 17,000 files of the environment, which no job imports, are not compiled.
"""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress

# only some jobs import these, for example evaluations, so the programs import them in functions
LATER = (
    "datasets",
    "lm_eval.evaluator",
    "lm_eval.models.huggingface",
    "pytorch_optimizer",
    "sentencepiece",
    "torch._inductor.codecache",
    "torch.distributed.run",
    "torch.utils.tensorboard",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)


def main() -> None:
    """Print the versions, and import the modules of jobs."""
    import megatron.core.datasets.helpers_cpp
    import torch

    print("torch", torch.__version__, "megatron-core", megatron.core.__version__, flush=True)
    with suppress(Exception):
        programs = importlib.import_module("megatron_core_trainer").__path__
        for module in pkgutil.walk_packages(programs, "megatron_core_trainer."):
            with suppress(Exception):
                importlib.import_module(module.name)
    for name in LATER:
        with suppress(Exception):
            importlib.import_module(name)


if __name__ == "__main__":
    main()
