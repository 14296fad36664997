// A compiled graph behind an interface: integer codes in, integer codes out. The round knows no runtime: a recording
// stands behind it in tests, an ONNX Runtime session or a QNN context on a phone.
#pragma once

#include <vector>

#include "affine.h"

namespace hyco {

class Graph {
 public:
  virtual ~Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  virtual const Boundary& boundary() const = 0;

  // One run: a pointer to the codes of every input and room for those of every output, in the boundary's order and of
  // its sizes. Pointers may differ from run to run. Throws RunnerError where the runtime fails.
  virtual void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) = 0;

 protected:
  Graph() = default;
};

}  // namespace hyco
