"""Evaluation of converted models: the model classes, the requested tasks, and tasks made from the test split.

Imports nothing from the trainer. ``evaluate_hf.py`` and ``each_checkpoint.py`` use all modules.
"""
