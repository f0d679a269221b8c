"""Weights of the models that ship with metrist: a folder each, data only."""
