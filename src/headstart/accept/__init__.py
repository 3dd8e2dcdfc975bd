"""Acceptance: which drafted tokens become text (``base``); each rule is one function of one file, with its source."""

from headstart.accept.base import Choice, Draft, Questions, Row, Verdict
from headstart.accept.exact import exact

__all__ = ["Choice", "Draft", "Questions", "Row", "Verdict", "exact"]
