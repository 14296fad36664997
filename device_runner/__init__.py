"""The phone: adb, the device's facts, the native runner and its build, benchmarks on the device.

    transport    the protocol; adb, local and recorded are its three ways
    devices      which phones are connected, choosing one
    push         bringing a folder to the device, verified
    facts        heat, battery, clocks; thermal_gate waits until a phone is cool

This package knows how to reach a device and run a program on it. It does not know how a bundle is made (`export`), nor
how drafts are accepted (`hyco_npu`).
"""
