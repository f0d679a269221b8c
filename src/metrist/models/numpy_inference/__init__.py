"""Shipped models, run by numpy alone: no torch, no runtime of another project.

A folder in this form has a config.json with the key "metrist_format" (its version), "architecture" and the sizes,
weights.safetensors with matrices of few bits and their scales, tokenizer.json, and the model's card and licences.
"""
