"""Sweep specs of other tools, recognised by their keys: one package for each tool.

Imports ``foreign``, ``native`` and the packages below.
Other packages call ``registry``, which imports a dialect when a document needs it.
"""
