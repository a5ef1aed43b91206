"""Spec files as text: YAML with positions, the files that it names, quantities, errors with place and hint.

Imports the standard library and PyYAML only.
Others use the errors, the folders of the project, and the reading of quantities.
"""
