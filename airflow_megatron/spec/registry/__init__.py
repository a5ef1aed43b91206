"""Registries that find classes by name: those of this package, and those of other packages by entry points.

Imports ``errors`` only.
``model`` has a registry for each extension point; the classes are in the layers above.
"""
