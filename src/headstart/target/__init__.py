"""Engines that verify drafts: one protocol (``base``), and PyTorch behind it (``hf``)."""
