"""Training: one loop for every metric that learns, and what each of them teaches it."""
