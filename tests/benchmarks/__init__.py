"""Measurements of sizes, times and memory at real dimensions; run by hand: `pytest tests/benchmarks -s`."""
