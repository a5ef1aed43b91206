"""Spec files as text: YAML with positions, the files that it refers to, quantities, errors with place and hint.

Imports ``trust``, the standard library and PyYAML only.
Other packages use the errors, the folders of the project, and the parser of quantities.
"""
