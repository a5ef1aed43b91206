"""Sweep specs of other tools, recognised by their shape: one package for each tool.

Imports the packages of ``spec`` below it: ``foreign``, ``native`` and what they use.
Others call ``registry``, which imports a dialect when a document needs it.
"""
