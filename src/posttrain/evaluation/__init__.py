"""What improved, what regressed, and is it sure? The judging half here imports no torch."""

from posttrain.evaluation.compare import Comparison, DomainChange, RoleChange, compare
from posttrain.evaluation.diagnose import Diagnosis, DomainDiagnosis, Thresholds, diagnose
from posttrain.evaluation.gate import Decision, GatePolicy, decide
from posttrain.evaluation.results import DomainScore, EvalResult, ItemResult, passed
from posttrain.evaluation.statistics import Interval

__all__ = [
    "Comparison",
    "Decision",
    "Diagnosis",
    "DomainChange",
    "DomainDiagnosis",
    "DomainScore",
    "EvalResult",
    "GatePolicy",
    "Interval",
    "ItemResult",
    "RoleChange",
    "Thresholds",
    "compare",
    "decide",
    "diagnose",
    "passed",
]
