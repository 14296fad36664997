"""The phone: adb, the device's facts, the native runner and its build, benchmarks on the device.

Holds nothing yet; the phone comes with a later issue. This package will know how to reach a device and run a bundle on
it. It does not know how a bundle is made (`export`), nor how drafts are accepted (`hyco_npu`).
"""
