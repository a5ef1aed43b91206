"""Check command lines with the code of a checkout of upstream Megatron-LM; a script for the trainer's Python.

    python upstream_verdicts.py CHECKOUT RELEASE <LINES

Lines are JSON: ``{"argv": […], "world_size": n}``, and what the job's machine has: ``"env": {…}``,
``"transformer_engine": "2.8"``, ``"compute_capability": 9``, ``"packages": […]``. For each line it prints
``{"ok", "stage", "message", "source"}``: ``stage`` is ``parse``, ``validate``, ``config`` or ``batches``, ``source``
the line of upstream that refuses. The script runs upstream's own ``parse_args``, ``validate_args``,
``TransformerConfig`` and microbatch calculator, with the defaults and arguments of ``pretrain_gpt.py``; only queries of
the machine are simulated.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import inspect
import io
import json
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_megatron" / "megatron" / "arguments"
sys.path[:0] = [str(PACKAGE.parents[2] / "Megatron-LM"), str(PACKAGE)]
import parser_dump  # noqa: E402
import upstream_on_cpu  # noqa: E402

#: Import names of optional packages that rules check; the packages of a line are empty stubs.
OPTIONAL = (
    *("nvidia_resiliency_ext", "torch_memory_saver", "multistorageclient", "flashinfer", "modelopt"),
    *("cudnn", "flash_mla"),
)
#: Kernels of Transformer Engine that configurations look for → its first version that has them.
KERNELS = {
    ("megatron.core.models.common.embeddings.rope_utils", "fused_apply_rotary_pos_emb"): (1, 4),
    ("megatron.core.models.common.embeddings.rope_utils", "fused_apply_rotary_pos_emb_thd"): (1, 4),
    **{
        ("megatron.core.transformer.moe.moe_utils", name): (2, 1)
        for name in (
            *("fused_permute", "fused_permute_with_probs", "fused_unpermute"),
            *("fused_sort_chunks_by_index", "fused_sort_chunks_by_index_with_probs"),
        )
    },
}


class Upstream:
    """The modules of a checkout, imported once."""

    def __init__(self, checkout: Path, release: str) -> None:
        import torch

        self.torch, self.release = torch, release
        sys.path.insert(0, str(checkout))
        self.checkout = checkout
        self.empty = parser_dump._EmptyPackages(set())
        sys.meta_path.insert(0, self.empty)
        upstream_on_cpu._complete_typing()
        upstream_on_cpu._provide_triton()
        torch.cuda.is_available = lambda: True
        torch.compile = lambda function=None, **_: function if function is not None else lambda f: f
        while True:
            try:
                self.arguments = importlib.import_module("megatron.training.arguments")
                break
            except ModuleNotFoundError as error:
                missing = (error.name or "").partition(".")[0]
                if missing in ("", "megatron"):
                    raise
                self.empty.packages.add(missing)
        parser_dump.give_versions(self.empty.packages)
        self.utils = importlib.import_module("megatron.core.utils")
        self.version_of_no_engine = self._version_of_no_engine()
        self.batches = importlib.import_module("megatron.core.num_microbatches_calculator")
        self.programs = self._programs()

    def _version_of_no_engine(self) -> Any:
        """Return what a release takes as the version of Transformer Engine where it is not installed."""
        from packaging.version import Version

        zero = "0.0.0"  # before core_v0.17 None, with which no version can be compared
        return Version(zero) if f'"{zero}"' in inspect.getsource(self.utils.get_te_version) else None

    def _programs(self) -> dict[bool, tuple[Any, dict[str, Any]]]:
        """Return a provider of the parser, and the defaults of ``pretrain_gpt.py``, without and with ModelOpt.

        What the program adds was recorded. Each parser is built once: building it takes longer than all checks.
        """
        from megatron.post_training.arguments import add_modelopt_args

        own = json.loads((PACKAGE / "arguments.json").read_text())["programs"]["pretrain_gpt.py"]
        recorded = own[self.release]
        add_all = self.arguments.add_megatron_arguments
        made: dict[bool, Any] = {}
        for have in (False, True):
            parser = add_all(argparse.ArgumentParser(allow_abbrev=False))
            if recorded["adds"] or (have and recorded["packages"].get("modelopt")):
                parser = add_modelopt_args(parser)
            parse = parser.parse_args
            parser.parse_args = lambda parse=parse: copy.deepcopy(parse())  # defaults may be lists
            made[have] = parser
        self.arguments.add_megatron_arguments = lambda parser: parser
        return {have: (lambda _, parser=made[have]: parser, recorded["defaults"]) for have in made}

    @contextlib.contextmanager
    def machine(self, line: dict[str, Any]) -> Any:
        """Simulate the machine of a line."""
        from packaging.version import Version

        given_engine = line.get("transformer_engine")
        engine = Version(given_engine) if given_engine else self.version_of_no_engine
        self.utils.get_te_version = lambda: engine
        capability = int(line.get("compute_capability") or 9)
        packages = set(line.get("packages") or ())
        given = line.get("env", {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
        environment = {str(name): str(value) for name, value in given.items()}
        environment |= {"WORLD_SIZE": str(line["world_size"]), "RANK": "0", "LOCAL_RANK": "0"}
        base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        before = dict(os.environ)
        os.environ.clear()
        os.environ.update(base | environment)
        for attribute, value in (("_te_version", engine), ("_fi_version", None)):
            if hasattr(self.utils, attribute):
                setattr(self.utils, attribute, value)
        if hasattr(self.utils, "_flashinfer_version"):
            self.utils._flashinfer_version = Version("0.6.4" if "flashinfer" in packages else "0.0.0")
        properties = types.SimpleNamespace(major=capability, minor=0, name="GPU", total_memory=1 << 37)
        self.torch.cuda.get_device_capability = lambda *_: (capability, 0)
        self.torch.cuda.get_device_properties = lambda *_: properties
        self.torch.cuda.device_count = lambda: 8
        for (module, name), version in KERNELS.items():
            found = importlib.import_module(module)
            setattr(found, name, (lambda: None) if engine and engine.release >= version else None)
        for package in OPTIONAL:
            for name in [name for name in sys.modules if name.partition(".")[0] == package]:
                del sys.modules[name]
            (self.empty.packages.add if package in packages else self.empty.packages.discard)(package)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)

    def verdict(self, line: dict[str, Any]) -> dict[str, Any]:
        """Return upstream's verdict on a command line."""
        stage = "parse"
        written = io.StringIO()
        add, defaults = self.programs["modelopt" in (line.get("packages") or ())]
        with self.machine(line), contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            sys.argv = ["pretrain_gpt.py", *line["argv"]]
            try:
                args = self.arguments.parse_args(add)
                args.rank, args.world_size = 0, line["world_size"]
                stage = "validate"
                self.arguments.validate_args(args, defaults)
                stage = "config"
                self.arguments.core_transformer_config_from_args(args)
                stage = "batches"
                self._count_microbatches(args)
            except SystemExit:
                text = (written.getvalue().strip().splitlines() or [""])[-1]
                return {"ok": False, "stage": stage, "message": text, "source": ""}
            except Exception as error:
                own = [
                    frame
                    for frame in traceback.extract_tb(error.__traceback__)
                    if frame.filename.startswith(str(self.checkout))
                ]
                place = own[-1] if own else traceback.extract_tb(error.__traceback__)[-1]
                name = place.filename.removeprefix(f"{self.checkout}/")
                text = f"{type(error).__name__}: {error}"
                return {"ok": False, "stage": stage, "message": text, "source": f"{name}:{place.lineno}"}
        return {"ok": True, "stage": "", "message": "", "source": ""}

    def _count_microbatches(self, args: Any) -> None:
        for unset in ("unset_num_microbatches_calculator", "destroy_num_microbatches_calculator"):
            if hasattr(self.batches, unset):
                getattr(self.batches, unset)()
                break
        ranks = args.data_parallel_size * getattr(args, "gtp_weight_remat_size", 1)
        names = self.batches.init_num_microbatches_calculator.__code__.co_varnames
        more = {}
        if "step_batch_size_schedule" in names:
            more["step_batch_size_schedule"] = getattr(args, "step_batch_size_schedule", None)
        if "seq_length" in names:
            more["seq_length"] = args.seq_length
        given = {
            "rank": args.rank,
            "rampup_batch_size": args.rampup_batch_size,
            "global_batch_size": args.global_batch_size,
            "micro_batch_size": args.micro_batch_size,
            "data_parallel_size": ranks,
            "decrease_batch_size_if_needed": args.decrease_batch_size_if_needed,
            **more,
        }
        self.batches.init_num_microbatches_calculator(**{k: v for k, v in given.items() if k in names})


def main() -> None:
    """Answer each line."""
    answers, sys.stdout = sys.stdout, sys.stderr  # upstream prints
    upstream = Upstream(Path(sys.argv[1]).resolve(), sys.argv[2])
    # read at once: a release may close the standard input
    for line in sys.stdin.read().splitlines():
        print(json.dumps(upstream.verdict(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
