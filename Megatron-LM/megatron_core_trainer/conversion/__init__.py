"""From a Megatron checkpoint to a Hugging Face model: what ``convert_to_hf.py`` is made of."""
