"""Plans of many points, computed by two processes with half of the points each.

Imports ``plan`` and the layers below.
The command line uses ``split_plan``.
"""
