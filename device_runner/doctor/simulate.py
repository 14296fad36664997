"""Runs the doctor's compiled graph on the x86 simulator: a context's path as argument, the values as a JSON list."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from device_runner.doctor.compiler import ACTIVATION_SCALE, INPUT_VALUE, ROWS_IN, TARGET, ZERO_POINT
from export.engines.htp import simulator_session


def main() -> int:
    """Run once and print y [COLUMNS]; what the session raises ends the process with its traceback on stderr."""
    session = simulator_session(Path(sys.argv[1]), TARGET)
    code = round(INPUT_VALUE / ACTIVATION_SCALE) + ZERO_POINT
    (codes,) = session.run(None, {"x": np.full((1, 1, 1, ROWS_IN), code, np.uint16)})
    values = (codes.astype(np.float64).ravel() - ZERO_POINT) * ACTIVATION_SCALE
    print()  # Qualcomm's library may have left a line open
    print(json.dumps(values.tolist()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
