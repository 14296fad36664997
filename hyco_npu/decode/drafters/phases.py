"""What a drafter's own time is booked to; the graphs' time is booked where they are opened (decode/engines.py)."""

TREE = "device.tree"
"""Scoring, merging and cutting."""
FEEDS = "device.feeds"
"""Making the graphs' inputs, without the graphs' own time."""
STATE = "device.state"
"""Windows of keys and values."""
