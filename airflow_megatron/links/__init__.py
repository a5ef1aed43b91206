"""Links from tasks to other pages.

Imports ``spec`` only.
Operators show them as extra links of their tasks.
"""
