"""The console output: tables, and how much is printed.

Imports nothing from the package.
The commands on specs and on runs use it.
"""
