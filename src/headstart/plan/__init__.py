"""Deciding what to draft: measured costs, calibrated chances, and the budget that follows from both."""
