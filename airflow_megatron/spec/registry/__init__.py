"""Classes that are found by a name: this package's own, and those of other packages by their entry points.

Imports nothing but the root of all errors.
``model`` has a registry for each thing that can vary; the classes stand in the layers above.
"""
