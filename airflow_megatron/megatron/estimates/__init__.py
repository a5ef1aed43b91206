"""Estimates before submission: parameters, operations, and memory of a GPU.

Imports ``arguments``, ``rules`` and ``validation``.
Other packages call ``estimate``, and read the specifications of GPUs in ``hardware``.
"""
