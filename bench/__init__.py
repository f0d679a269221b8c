"""What metrist costs, measured beside its peers in one run. `make bench-lexical` and `make bench-start`."""
