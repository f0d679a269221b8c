"""Metrics that other programs compute, each in its own environment, as a subprocess that reads and writes files."""
