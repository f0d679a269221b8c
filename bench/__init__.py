"""Benchmarks of metrist and of comparable packages; `make help` lists them (`bench-…`)."""
