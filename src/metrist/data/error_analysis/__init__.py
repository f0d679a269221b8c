"""Training data for error analysts: records with errors, in the form of the TIGERScore checkpoints (MetricInstruct)."""

from metrist.data.error_analysis.build import AnalysisBuildResult, BuildSettings, build_examples
from metrist.data.error_analysis.channels import JudgedOutput, read_outputs
from metrist.data.error_analysis.examples import (
    AnalysisExample,
    Channel,
    make_example,
    read_examples,
    read_published_row,
    write_examples,
)

__all__ = [
    "AnalysisBuildResult",
    "AnalysisExample",
    "BuildSettings",
    "Channel",
    "JudgedOutput",
    "build_examples",
    "make_example",
    "read_examples",
    "read_outputs",
    "read_published_row",
    "write_examples",
]
