"""Maximal-update parametrization (muP) and CompleteP: hyperparameters that transfer to other widths and depths.

The flags and rules for the width are those of Megatron-LM core_v0.19.0 (``--use-mup``: ``transformer_config.py``,
``optimizer/__init__.py::get_mup_config_overrides``); the release of megatron-core that this trainer uses does not have
them yet. The rules for the depth are those of CompleteP, with Megatron-DeepSpeed's flags (argonne-lcf, pull request 97:
``--enable-depth-scale``, ``--depth-base``, ``--depth-alpha``). Let m = hidden size / base hidden size,
l = layers / base layers with ``--enable-depth-scale`` (otherwise 1), and a = ``--depth-alpha`` (1: CompleteP):

========================  =============================  ===============================  ==========================
weights                   standard deviation at start    learning rate (Adam-like)        weight decay
========================  =============================  ===============================  ==========================
embedding, output         s_e                            lr                               wd
hidden, into a block      s / sqrt(m)                    lr l^(a-1) / m                   wd, CompleteP: wd m
hidden, out of a block    s / sqrt(2 L m)                lr l^(a-1) / m                   wd, CompleteP: wd m
norms and biases inside   (1 and 0)                      lr l^(a-1)                       0
final norm                (1 and 0)                      lr                               0
========================  =============================  ===============================  ==========================

s is ``--init-method-std``, s_e ``--embedding-init-method-std`` (s if not given), L the number of layers, with
CompleteP that of the base model. The epsilon of megatron-core's Adam is eps / m for hidden weights; with CompleteP
eps / (m l^a) for all. With SGD the rate of hidden weights is lr, and that of embedding, output, norms and biases is
lr m. In the forward pass:

- embeddings are multiplied by ``--mup-embedding-mult``;
- attention logits by sqrt(``--mup-base-head-dim``) / head dimension^``--mup-attn-scale-power`` (base 1, power 1);
- the output that a block adds to the residual stream by l^-a;
- logits by 1 / m, or by ``--mup-output-mult`` if that is not 1.

With m = l = 1 only the attention differs from a model without muP.

Sources: Yang et al. 2022, Tensor Programs V, arXiv:2203.03466 (table 8, appendix B.3); Dey et al. 2025,
arXiv:2505.01618 (table 1) and its authors' implementation (EleutherAI/nanoGPT-mup, branch completep).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

# The flags of muP and CompleteP, with their values when they are not given.
DEFAULTS: dict[str, Any] = {
    "mup_base_hidden_size": None,
    "mup_embedding_mult": 1.0,
    "mup_output_mult": 1.0,
    "mup_base_head_dim": None,
    "mup_attn_scale_power": 1.0,
    "enable_depth_scale": False,
    "depth_base": None,
    "depth_alpha": 1.0,
}


@dataclass(frozen=True)
class Factors:
    """Factors of a parameter's learning rate, weight decay and epsilon.

    :param rate: factor of the learning rate.
    :param weight_decay: factor of the weight decay.
    :param epsilon: factor of Adam's epsilon.
    """

    rate: float = 1.0
    weight_decay: float = 1.0
    epsilon: float = 1.0


@dataclass(frozen=True)
class Parametrization:
    """The multipliers of one model; the module's docstring defines the symbols.

    :param width: m, hidden size / base hidden size.
    :param depth: l, layers / base layers; 1 without CompleteP.
    :param alpha: a, the power of the depth; None without CompleteP.
    :param hidden_std: standard deviation of the hidden weights that read the residual stream.
    :param projection_std: standard deviation of the hidden weights that write into it.
    :param outer_std: standard deviation of embeddings and output weights.
    :param embedding: multiplier of the embeddings.
    :param attention: factor of the attention logits.
    :param residual: multiplier of the output that a block adds.
    :param output: multiplier of the logits.
    """

    width: float
    depth: float
    alpha: float | None
    hidden_std: float
    projection_std: float
    outer_std: float
    embedding: float
    attention: float
    residual: float
    output: float

    def factors(self, name: str, dimensions: int, *, optimizer: str) -> Factors:
        """Return the factors of one parameter.

        :param name: its name in the model, for example ``decoder.layers.0.mlp.linear_fc1.weight``.
        :param dimensions: number of its dimensions.
        :param optimizer: ``--optimizer``; the rules for SGD differ from those for Adam-like optimizers.
        """
        inside = "decoder.layers." in name
        matrix = inside and dimensions > 1
        if optimizer == "sgd":
            return Factors(rate=1.0 if matrix else self.width)
        by_depth = 1.0 if self.alpha is None else self.depth ** (self.alpha - 1)
        rate = (by_depth if inside else 1.0) / (self.width if matrix else 1.0)
        if self.alpha is None:
            return Factors(rate=rate, epsilon=rate)
        epsilon = 1 / (self.width * self.depth**self.alpha)
        return Factors(rate=rate, weight_decay=self.width if matrix else 1.0, epsilon=epsilon)


def parametrization(settings: Mapping[str, Any]) -> Parametrization | None:
    """Compute the multipliers of a model; return None without ``--use-mup``.

    :param settings: arguments of this run, or of a checkpoint of this trainer or of upstream Megatron-LM.
    """
    if not settings.get("use_mup"):
        return None
    given = {name: settings.get(name, default) for name, default in DEFAULTS.items()}
    hidden, layers = settings["hidden_size"], settings["num_layers"]
    width = hidden / (given["mup_base_hidden_size"] or hidden)
    base_layers = given["depth_base"] if given["enable_depth_scale"] else layers
    depth = layers / base_layers
    alpha = given["depth_alpha"] if given["enable_depth_scale"] else None
    std = settings["init_method_std"]
    head = math.sqrt(given["mup_base_head_dim"] or 1.0)
    return Parametrization(
        width=width,
        depth=depth,
        alpha=alpha,
        hidden_std=std / math.sqrt(width),
        projection_std=std / math.sqrt(2 * base_layers * width),
        outer_std=settings.get("embedding_init_method_std") or std,
        embedding=given["mup_embedding_mult"],
        attention=head / settings["kv_channels"] ** given["mup_attn_scale_power"],
        residual=1.0 if alpha is None else depth**-alpha,
        output=1 / width if given["mup_output_mult"] == 1.0 else given["mup_output_mult"],
    )


def difference(saved: Parametrization | None, ours: Parametrization | None) -> str | None:
    """Return the difference between the parametrizations of two models, None if they are equal.

    :param saved: the parametrization of a checkpoint.
    :param ours: the parametrization of this run.
    """
    if saved is None or ours is None:
        return None if saved is ours else f"--use-mup {saved is not None} (now {ours is not None})"
    differing = [
        f"{field.name} {getattr(saved, field.name)} (now {getattr(ours, field.name)})"
        for field in fields(ours)
        # The initial deviations no longer matter.
        if not field.name.endswith("_std") and getattr(saved, field.name) != getattr(ours, field.name)
    ]
    return ", ".join(differing) or None


def folded_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an equivalent model without multipliers; tied weights become separate.

    :param saved: the arguments saved in the checkpoint.
    """
    if parametrization(saved) is None:
        return dict(saved)
    return {**saved, "use_mup": False, "untie_embeddings_and_output_weights": True}
