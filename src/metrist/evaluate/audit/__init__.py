"""The judge audit: measure an LLM's biases and faults as a judge, and report them on a judge card."""

from metrist.evaluate.audit.analyses import audit_analyses, estimate_analyses
from metrist.evaluate.audit.audit import audit, estimate_audit
from metrist.evaluate.audit.card import Finding, JudgeCard
from metrist.evaluate.plans import AuditPlan as Plan

__all__ = ["Finding", "JudgeCard", "Plan", "audit", "audit_analyses", "estimate_analyses", "estimate_audit"]
