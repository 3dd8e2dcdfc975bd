"""Trained guessers: their mathematics, and the folder they are saved in."""
