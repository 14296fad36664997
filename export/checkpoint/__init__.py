"""Reading checkpoints of Gemma 4 drafters and verifiers: where they come from, their files, their configuration.

Nothing here runs a model, and no weight is read before it is asked for.
"""
