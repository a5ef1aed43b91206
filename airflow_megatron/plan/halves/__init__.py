"""Plans of many points, made by two processes, each for one half of the points.

Imports ``plan`` and the layers below.
The command line uses ``split_plan``.
"""
