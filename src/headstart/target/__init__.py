"""Engines that verify drafts: one protocol (``base``), and behind it C++ on a CPU (``native``) and PyTorch (``hf``)."""
