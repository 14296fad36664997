"""The device's side of a round: drafters, one a file, and what they share. registry.py builds them by name."""
