"""Remote scripts: framing, quoting, the transport that runs them, and the JSON records that they read and write.

Imports ``spec``.
Others use ``transport``, ``quoting``, ``records``, ``attempt`` and ``profile``; ``shell/`` holds the fixed shell text.
"""
