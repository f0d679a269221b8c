"""LLM judges: rubrics, grades, pairwise judges and panels."""
