"""Compare systems, check a run against limits, and describe how it was evaluated."""
