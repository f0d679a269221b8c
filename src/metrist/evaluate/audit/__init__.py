"""The judge audit: what an LLM does as a judge besides judging, on a card of numbers with intervals."""

from metrist.evaluate.audit.audit import Plan, audit, estimate_audit
from metrist.evaluate.audit.judge import Finding, JudgeCard

__all__ = ["Finding", "JudgeCard", "Plan", "audit", "estimate_audit"]
