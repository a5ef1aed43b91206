"""Expressions of specs: sandboxed Jinja2, references in any order, bounds on work and memory.

Imports ``documents``.
Other packages use ``resolution``; the functions that expressions may call are in ``functions``.
"""
