"""The model of a sweep in any language: Sweep, Point, Stage, Job, the stage tree, cluster profiles.

Imports ``documents``, ``registry``, ``trust``, ``layout``, ``trackers`` and ``expressions``.
All layers above use all of it.
"""
