"""Medusa-2: the base and its heads learn together, and the result is a model of its own."""
