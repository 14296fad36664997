// A graph on a session of ONNX Runtime: its boundary checked, its inputs and outputs bound once.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "graph.h"
#include "manifest.h"
#include "ort_api.h"

namespace hyco {

// The library with the process's one environment.
class OrtRuntime {
 public:
  // Throws RunnerError as ort::Library does.
  explicit OrtRuntime(const std::string& library);

  const ort::Library& api() const { return api_; }
  ort::Library& replaceable() { return api_; }
  ort::Env* env() const { return env_.get(); }
  // The QNN plugin's device; the plugin is registered when it is first asked for. Throws RunnerError for a file that is
  // no such plugin.
  const ort::EpDevice* qnn_device(const std::string& plugin);

 private:
  ort::Library api_;
  ort::Owned<ort::Env> env_;
  const ort::EpDevice* qnn_ = nullptr;
};

using TextPairs = std::vector<std::pair<std::string, std::string>>;

// How a session runs its model.
struct SessionPlan {
  int threads = 1;
  TextPairs entries;           // of the session
  std::string qnn_plugin;      // "": ONNX Runtime's CPU provider, without any optimisation of the graph
  TextPairs provider_options;  // of the QNN provider
};

class OrtGraph : public Graph {
 public:
  // `runtime` and `entry` must outlive this. Throws RunnerError naming the graph where the model does not load, and
  // where its inputs and outputs are not those of the manifest.
  OrtGraph(OrtRuntime& runtime, const GraphEntry& entry, const std::string& model, const SessionPlan& plan);

  const Boundary& boundary() const override { return entry_.boundary; }
  // Binds what has moved since the last run, and runs. Allocates nothing where nothing has moved.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) override;

 private:
  // An input or output: its shape as the runtime takes it, and the memory that is bound to it.
  struct Port {
    const BoundaryTensor* tensor;
    std::vector<std::int64_t> shape;
    const void* bound = nullptr;
  };
  struct Side {
    const char* name;
    ort::Status* (*const ort::Functions::*count)(const ort::Session*, std::size_t*);
    ort::Status* (*const ort::Functions::*tensor_name)(const ort::Session*, std::size_t, ort::Allocator*, char**);
    ort::Status* (*const ort::Functions::*type)(const ort::Session*, std::size_t, ort::TypeInfo**);
  };

  ort::Owned<ort::SessionOptions> options(const SessionPlan& plan);
  void append_qnn(ort::SessionOptions* options, const SessionPlan& plan);
  std::vector<Port> checked_ports(const Side& side, const std::vector<BoundaryTensor>& wanted) const;
  void check_tensor(const Side& side, std::size_t index, const std::vector<BoundaryTensor>& wanted) const;
  std::string name_of(const Side& side, std::size_t index) const;
  void bind(Port& port, void* data, bool is_input);

  OrtRuntime& runtime_;
  const GraphEntry& entry_;
  std::string what_;  // the graph and its file, for messages
  ort::Owned<ort::Session> session_;
  ort::Owned<ort::MemoryInfo> memory_;
  ort::Owned<ort::IoBinding> binding_;
  std::vector<Port> inputs_;
  std::vector<Port> outputs_;
};

}  // namespace hyco
