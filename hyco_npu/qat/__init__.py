"""Quantisation-aware training of an MTP head: `hyco-npu qat`.

The recipe is the paper's where it is public (docs/qat.md). Every weight is rounded in the forward pass by the function
that export rounds with, and the checkpoint carries the codes and scales that the training ended with.
"""
