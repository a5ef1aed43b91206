"""Estimates before submission: parameters, operations, and memory of a GPU.

Imports ``arguments``, ``rules`` and ``validation``.
Others call ``estimate``, and read the data sheets of GPUs in ``hardware``.
"""
