"""The CPU in environments that are made for GPUs: with packages that need one, and with PyTorch built for CUDA."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
from trainer_harness import SCRIPTS, Data, Trainer, pretrain_args

if TYPE_CHECKING:
    from pathlib import Path

# PyTorch's build for CUDA, as it behaves on a machine without a driver. upstream_on_cpu.py replaces is_available.
BUILT_FOR_CUDA = """
import sys
sys.path.insert(0, sys.argv[1])
from megatron_core_trainer import cpu_device
import torch

def fail(*args):
    raise RuntimeError("Found no NVIDIA driver on your system")

torch._C._accelerator_getAccelerator = lambda: torch.device("cuda")
torch.accelerator.set_device_index = torch.Tensor.pin_memory = fail
torch.cuda.graphs._cuda_isCurrentStreamCapturing = fail
cpu_device.install()
torch.cuda.is_available = lambda: True
batches = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4, pin_memory=True, num_workers=int(sys.argv[2]))
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.AdamW([weight])
for batch in batches:
    (batch @ weight).sum().backward()
    optimizer.step()
print("trained")
"""

OPTIMIZERS = """
import sys
sys.path.insert(0, sys.argv[1])
from megatron_core_trainer import cpu_device
import torch

def trained(name):
    weights = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    optimizer = getattr(torch.optim, name)(weights[:1], lr=0.1)
    optimizer.add_param_group({"params": weights[1:], "lr": 0.2})
    for _ in range(3):
        sum((weight * weight).sum() for weight in weights).backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    return torch.cat(weights)

names = ("Adam", "AdamW", "SGD")
cpu_device.install()
ours = [trained(name) for name in names]
assert "torch._dynamo" not in sys.modules
cpu_device.uninstall()
originals = [trained(name) for name in names]
assert "torch._dynamo" in sys.modules
print(*(torch.equal(one, other) for one, other in zip(ours, originals, strict=True)))
"""


def test_optimizers_do_not_load_the_compiler(trainer: Trainer) -> None:
    """Otherwise each training would load it before its first iteration, for a tenth of its start-up time."""
    command = [trainer.python, "-c", OPTIMIZERS, SCRIPTS]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "True True True\n"), result.stderr


def test_packages_that_need_a_gpu_are_not_imported(trainer: Trainer, data: Data, tmp_path: Path) -> None:
    """megatron-core prefers Transformer Engine's norms and optimizers, also where nobody asks for them."""
    for name in ("transformer_engine", "apex", "amp_C"):
        (tmp_path / "site" / name).mkdir(parents=True)
        failing = "raise OSError('libcuda.so.1: cannot open shared object file')\n"
        (tmp_path / "site" / name / "__init__.py").write_text(failing)
    environment = {"PYTHONPATH": str(tmp_path / "site")}
    args = pretrain_args(data, tmp_path / "save", ["--lr-warmup-iters", "0", "--exit-interval", "2"])
    outcome = trainer.run("pretrain_gpt.py", *args, environment=environment)
    assert outcome.status == 0, outcome.stderr
    convert = ("--load", tmp_path / "save", "--output", tmp_path / "converted")
    outcome = trainer.run("convert_to_hf.py", *convert, environment=environment)
    assert outcome.status == 0, outcome.stderr
    assert (tmp_path / "converted" / "config.json").is_file()


@pytest.mark.parametrize("workers", [0, 1])
def test_pytorch_built_for_cuda(trainer: Trainer, workers: int) -> None:
    command = [trainer.python, "-c", BUILT_FOR_CUDA, SCRIPTS, str(workers)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "trained\n"), result.stderr
