"""Conversion of a Megatron checkpoint to a Hugging Face model, and the comparison of the two.

May import the trainer's ``arguments``, ``model``, ``distributed`` and ``cpu_device``. ``convert_to_hf.py`` uses all
modules; ``check_conversions.py`` uses ``architecture`` and ``model_settings``, which do not need torch.
"""
