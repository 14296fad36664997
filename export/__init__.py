"""From a checkpoint to an NPU bundle: readers, static graphs, passes, compilers, the bundle and its manifest.

What this package does not know: prompts, the server, the phone.
"""
