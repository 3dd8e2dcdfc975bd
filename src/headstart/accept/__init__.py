"""Acceptance: which drafted tokens become text (``base``); each rule is one function of one file, with its source."""

from headstart.accept.base import Choice, Draft, Questions, Row, Rule, Verdict
from headstart.accept.choose import RULES, choose_rule
from headstart.accept.exact import EXACT, exact

__all__ = ["EXACT", "RULES", "Choice", "Draft", "Questions", "Row", "Rule", "Verdict", "choose_rule", "exact"]
