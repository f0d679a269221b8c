"""Weights of English text encoders that ship with metrist: a folder each, data only."""
