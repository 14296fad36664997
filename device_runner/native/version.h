// The package's version: hyco_npu/__init__.py. A test compares both.
#pragma once

namespace hyco {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace hyco
