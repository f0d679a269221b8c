"""The adapter of the error analyst that ships with metrist: a folder, data only."""
