"""Optimization: optimizers, schedules, parametrizations and the search for a learning rate.

May import ``arguments`` and ``atomic_output``. ``optimizer``, ``library_optimizers`` and ``multipliers`` need torch;
the other modules do not. The training uses ``optimizer`` and ``lr_curve``; the model uses ``parametrization`` and
``multipliers``.
"""
