// Parts of the runner that need ONNX Runtime, for the tests.
#pragma once

#include "json.h"
#include "safetensors.h"

namespace hyco {

// Runs a bundle's graph three times: on `first.NAME`, on `second.NAME` in the same memory, and on those in other memory.
// Gives the SHA-256 of every output of each run, and how often this program took memory during a run where nothing had
// moved, and where everything had.
Json probe_graph(const Json& json, const SafetensorsFile& file);

// What single functions of the C interface do: threads of a session, bytes that it logs, memory that is held after many
// sessions.
Json probe_sessions(const Json& json);

}  // namespace hyco
