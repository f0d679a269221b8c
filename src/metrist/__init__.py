"""metrist scores generated text, explains its errors, and tells which metric to trust on your own data."""

__version__ = "0.1.0"
