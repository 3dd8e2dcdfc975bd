"""Engines in processes of their own: other projects' in measurements, and every engine of the benchmarks."""
