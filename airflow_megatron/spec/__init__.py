"""Sweep specs, from text to jobs. Imports no Airflow and nothing of the other layers.

Its packages, lowest first: ``documents``, ``trust``, ``trackers``, ``layout``, ``expressions``, ``model``, ``foreign``,
``native``, ``dialects``.
Other layers load a spec by ``spec_files`` and read the classes of ``model``.
"""
