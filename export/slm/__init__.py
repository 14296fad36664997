"""`hyco-npu export slm`: the E2B QAT checkpoint as NPU graphs, its codes bit for bit; and the bundle's check."""
