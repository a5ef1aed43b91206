"""The console that tables are printed on, and how much is printed.

Imports nothing of the package.
All commands use it.
"""
