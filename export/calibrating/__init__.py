"""Calibration by itself: graphs of a head or an SLM watched over prompts, in shards and in parallel processes."""
