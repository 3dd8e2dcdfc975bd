"""Whatever guesses: one protocol (``base``), one file a method."""
