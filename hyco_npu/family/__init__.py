"""The embedded family: a verifier, an MTP head and an SLM of true Gemma 4 architecture, small enough to ship.

The weights lie in `weights/` beside this file in transformers' own format. They are a testbed: their language is
that of grade-school word problems and their arithmetic is wrong.
"""

from pathlib import Path

FAMILY_DIR = Path(__file__).parent / "weights"
VERIFIER_DIR = FAMILY_DIR / "verifier"
MTP_DIR = FAMILY_DIR / "mtp"
SLM_DIR = FAMILY_DIR / "slm"
"""Folders of the embedded checkpoints, each loadable by transformers without network."""

_DATA_DIR = Path(__file__).parent / "data"
CALIBRATION_PROMPTS = _DATA_DIR / "calibration_prompts.jsonl"
HELD_OUT_PROMPTS = _DATA_DIR / "held_out_prompts.jsonl"
"""Prompts written for this project, disjoint."""
