"""Sweeps over decoding configurations: `hyco-npu sweep`. plan.py says what runs, run.py runs it, report.py shows it."""
