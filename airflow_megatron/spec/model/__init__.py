"""The model of a sweep in any language: Sweep, Point, Stage, Job, the stage tree, cluster profiles.

Imports ``documents``, ``trust`` and ``expressions``.
Others use all of it: it is what every layer above speaks of.
"""
