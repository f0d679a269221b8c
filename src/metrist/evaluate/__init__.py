"""What users ask of runs: compare, check, explain, calibrate, audit and meta-evaluate."""
