"""Data to learn from: human judgments made into pairs of a good and a bad answer, and split without leaks."""
