"""Weights of the English text encoder that ships with metrist: a folder, data only."""
