"""What the export is fitted to: prompts, the kept part of the vocabulary, activation ranges.

Knows nothing of graphs or checkpoints; every result is a file with a schema version.
"""

from __future__ import annotations
