"""Weights of the large English text encoder that ships with metrist: a folder, data only."""
