"""From a Megatron checkpoint to a Hugging Face model, and how well the two agree.

May import the trainer's ``arguments``, ``model``, ``distributed`` and ``cpu_device``. ``convert_to_hf.py`` uses
all of it; ``check_conversions.py`` asks ``architecture`` and ``model_settings``, which load without torch.
"""
