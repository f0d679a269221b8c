"""Metrics from trained models, and percentiles and mixtures of them."""
