"""Protection against untrusted text: quoting, bounded patterns, isolated processes, secrets, checked records.

Imports ``errors`` only.
All packages use it for values from specs and from clusters.
"""
