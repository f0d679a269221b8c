"""Training data for error analysts: records with errors, in the form of the TIGERScore checkpoints (MetricInstruct)."""

from metrist.data.error_analysis.examples import Channel, Example, make_example, read_examples, write_examples

__all__ = ["Channel", "Example", "make_example", "read_examples", "write_examples"]
