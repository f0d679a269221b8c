"""Training: one loop for all metrics that learn, and the tasks it trains."""
