"""Outputs to look at: their errors with reasons, the worst first, and what people say about analyses."""
