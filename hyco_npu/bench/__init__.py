"""`hyco-npu bench`: drafting rounds timed on a device, compared with the host's trees, judged, reported.

`result.evaluate` turns what was measured (`device_runner.measurement`) into figures and a verdict; `report` shows them.
"""
