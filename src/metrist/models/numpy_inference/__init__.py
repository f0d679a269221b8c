"""Shipped models run by numpy alone, without torch or another runtime.

A model folder has a config.json with the keys "metrist_format" (the format's version), "architecture" and the sizes;
weights.safetensors with quantized matrices and their scales; tokenizer.json; and the model's card and licences.
"""
