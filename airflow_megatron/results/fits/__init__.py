"""Fits to the losses of a sweep, with intervals: optima of learning rate and batch, scaling laws, predictions.

Imports ``tables``, ``readings`` and ``megatron``. numpy and scipy come with the extra ``fits``: only ``refusals``,
``published`` and ``sweep_runs`` work without them. ``plots``, ``report``, the command line use it.
"""
