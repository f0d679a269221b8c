"""Metrics that list the errors of an output."""
