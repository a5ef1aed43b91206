"""Evaluation of converted models: the model classes, the requests, and tasks made from the test split.

Imports nothing of the trainer. ``evaluate_hf.py`` and ``each_checkpoint.py`` use all of it.
"""
