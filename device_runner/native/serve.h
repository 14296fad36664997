// Drafts for a client over TCP: the verifier's state in, trees out.
//
// A request's payload is a safetensors file; its metadata "event" is JSON: "open" (schema_version, config) makes a fresh
// drafter, and begin, draft and commit are those of events.h, whose update is number 0 of the same payload. Answers are
// JSON with `total_ms` and `parts`: {"ok": true}, or {"tree": ...}, or {"error": ...}, after which the connection ends.
#pragma once

#include <chrono>
#include <cstdint>

#include "drafter.h"

namespace hyco {

// Prints the port that it listens at, serves one client and returns when that one closes the connection. Throws
// RunnerError where none comes within the time, and for a request that cannot be answered, once the client has been told.
void serve(LoadedBundles& bundles, std::uint16_t port, std::chrono::seconds client_timeout);

}  // namespace hyco
