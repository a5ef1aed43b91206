"""Protection against untrusted text: quoting, bounded patterns, isolated processes, secrets, checked records.

Imports ``documents``.
Others use all of it, wherever a value comes from a spec or from a cluster.
"""
