"""Sweep specs, from text to jobs. Imports no Airflow and no other layer.

Its packages, lowest first: ``trust``; ``documents`` and ``registry``; ``layout``, ``trackers`` and ``expressions``;
``model``, ``native``, ``foreign``, ``dialects``.
Other layers load a spec with ``spec_files`` and read the classes of ``model``.
"""
