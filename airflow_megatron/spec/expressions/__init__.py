"""Expressions of specs: sandboxed Jinja2, references in any order, bounds on work and memory.

Imports ``documents`` and ``trust``.
Others use ``resolution``; the functions that expressions may call are in ``functions``.
"""
