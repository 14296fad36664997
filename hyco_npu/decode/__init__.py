"""Drafting on one side, verifying on the other, in one process: draft, verify, accept, commit."""
