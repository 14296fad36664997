"""Compiles graphs for HTP, several into one binary: a JSON job on stdin, a JSON report as the last line of stdout."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from export.engines.htp import qnn_session
from export.engines.two_bit import TwoBitStorage


def main() -> int:
    """Compile and report; the exit code is 1 when the compiler said no."""
    job = json.load(sys.stdin)
    graphs, sessions, narrowed = job["graphs"], [], []
    began = time.monotonic()
    try:
        if job["two_bit"]:
            import onnxruntime_qnn

            narrowed = TwoBitStorage(Path(onnxruntime_qnn.get_qnn_htp_path())).narrowed
        for index, (qdq, context) in enumerate(graphs):
            entries = {
                "ep.context_enable": "1",
                "ep.context_file_path": context,
                "ep.context_embed_mode": "0",
            }
            if len(graphs) > 1:
                entries["ep.share_ep_contexts"] = "1"
                if index + 1 == len(graphs):
                    entries["ep.stop_share_ep_contexts"] = "1"
            # The sessions before it must live until the last one has written the binary.
            sessions.append(qnn_session(Path(qdq), job["soc_model"], job["htp_arch"], entries, job["options"]))
    except Exception as error:  # whatever the compiler raises is the report
        print(json.dumps({"error": str(error)}))
        return 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    report = {"compile_s": time.monotonic() - began, "peak_rss_bytes": peak, "narrowed": sorted(set(narrowed))}
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
