"""Base of foreign languages: sidecars, and the shape of a foreign sweep.

Imports ``model`` and the packages below.
The dialects use it; other layers do not.
"""
