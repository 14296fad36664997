"""hyco-npu: HyCo's two drafters on a phone's NPU, drafting for a server."""

__version__ = "0.1.0"
