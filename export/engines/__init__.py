"""Where a graph runs: torch floats, ONNX Runtime on the CPU, Qualcomm's HTP simulator; one interface for all."""
