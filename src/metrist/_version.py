"""The version of metrist, in one place: hatch reads it for the package, and every module imports it from here."""

__version__ = "0.1.0"
