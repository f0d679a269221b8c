"""Metrics that other programs compute, each in an environment of its own, called as a subprocess over files."""
