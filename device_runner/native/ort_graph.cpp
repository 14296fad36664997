#include "ort_graph.h"

#include <algorithm>
#include <map>

#include "errors.h"

namespace hyco {

namespace {

constexpr const char* kQnnProvider = "QNNExecutionProvider";

// ONNX's numbers of the types that a boundary can have.
const std::map<IntegerType, int>& onnx_types() {
  static const std::map<IntegerType, int> types = {{IntegerType::kUint8, 2},
                                                   {IntegerType::kInt8, 3},
                                                   {IntegerType::kUint16, 4},
                                                   {IntegerType::kInt16, 5}};
  return types;
}

std::string described(int type, const std::vector<std::int64_t>& shape) {
  static const std::map<int, const char*> names = {{1, "float32"}, {2, "uint8"}, {3, "int8"},  {4, "uint16"},
                                                   {5, "int16"},   {6, "int32"}, {7, "int64"}, {10, "float16"}};
  const auto found = names.find(type);
  std::string text = found == names.end() ? "type " + std::to_string(type) : found->second;
  text += " [";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + (shape[i] < 0 ? "?" : std::to_string(shape[i]));
  }
  return text + "]";
}

std::vector<std::int64_t> shape_of(const BoundaryTensor& tensor) { return {tensor.shape.begin(), tensor.shape.end()}; }

}  // namespace

OrtRuntime::OrtRuntime(const std::string& library) : api_(library), env_(nullptr, api_->release_env) {
  ort::Env* env = nullptr;
  api_.check(api_->create_env(ort::kLogErrors, "hyco_runner", &env), "ONNX Runtime does not start");
  env_.reset(env);
}

const ort::EpDevice* OrtRuntime::qnn_device(const std::string& plugin) {
  if (qnn_ == nullptr) {
    const std::string path = ort::absolute_path(plugin);
    api_.check(api_->register_provider(env(), kQnnProvider, path.c_str()), plugin + " is not taken as a provider");
    const ort::EpDevice* const* devices = nullptr;
    std::size_t count = 0;
    api_.check(api_->provider_devices(env(), &devices, &count), "the devices cannot be listed");
    const auto* const found = std::find_if(devices, devices + count, [&](const ort::EpDevice* device) {
      return std::string(api_->device_provider(device)) == kQnnProvider;
    });
    if (found == devices + count) {
      throw RunnerError("ONNX Runtime " + api_.version() + " finds no QNN device in " + plugin);
    }
    qnn_ = *found;
  }
  return qnn_;
}

OrtGraph::OrtGraph(OrtRuntime& runtime, const GraphEntry& entry, const std::string& model, const SessionPlan& plan)
    : runtime_(runtime),
      entry_(entry),
      what_("graph " + entry.name + " (" + model + ")"),
      session_(nullptr, runtime.api()->release_session),
      memory_(nullptr, runtime.api()->release_memory_info),
      binding_(nullptr, runtime.api()->release_binding) {
  const ort::Library& api = runtime_.api();
  const ort::Owned<ort::SessionOptions> options = this->options(plan);
  ort::Session* session = nullptr;
  api.check(api->create_session(runtime_.env(), model.c_str(), options.get(), &session), what_ + " does not load");
  session_.reset(session);
  using F = ort::Functions;
  const Side in{"input", &F::session_input_count, &F::session_input_name, &F::session_input_type};
  const Side out{"output", &F::session_output_count, &F::session_output_name, &F::session_output_type};
  inputs_ = checked_ports(in, entry.boundary.inputs);
  outputs_ = checked_ports(out, entry.boundary.outputs);
  ort::MemoryInfo* memory = nullptr;
  api.check(api->create_cpu_memory_info(ort::kArenaAllocator, ort::kDefaultMemory, &memory), what_);
  memory_.reset(memory);
  ort::IoBinding* binding = nullptr;
  api.check(api->create_binding(session_.get(), &binding), what_);
  binding_.reset(binding);
}

void OrtGraph::run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {
  if (inputs.size() != inputs_.size() || outputs.size() != outputs_.size()) {
    throw RunnerError(what_ + " has " + std::to_string(inputs_.size()) + " inputs and " +
                      std::to_string(outputs_.size()) + " outputs, given are " + std::to_string(inputs.size()) +
                      " and " + std::to_string(outputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i] != inputs_[i].bound || inputs[i] == nullptr) {
      // the runtime's tensors are not constant, but a session writes to none of its inputs
      bind(inputs_[i], const_cast<void*>(inputs[i]), true);
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i] != outputs_[i].bound || outputs[i] == nullptr) {
      bind(outputs_[i], outputs[i], false);
    }
  }
  const ort::Library& api = runtime_.api();
  if (ort::Status* status = api->run_with_binding(session_.get(), nullptr, binding_.get())) {
    api.check(status, what_ + " does not run");
  }
}

ort::Owned<ort::SessionOptions> OrtGraph::options(const SessionPlan& plan) {
  const ort::Library& api = runtime_.api();
  ort::SessionOptions* made = nullptr;
  api.check(api->create_session_options(&made), what_);
  ort::Owned<ort::SessionOptions> options(made, api->release_session_options);
  api.check(api->set_session_log_severity(made, ort::kLogErrors), what_);
  api.check(api->set_intra_op_threads(made, plan.threads), what_);
  for (const auto& [key, value] : plan.entries) {
    api.check(api->add_session_config(made, key.c_str(), value.c_str()), what_ + ", setting " + key);
  }
  if (plan.qnn_plugin.empty()) {
    api.check(api->set_optimization_level(made, ort::kNoOptimization), what_);
  } else {
    append_qnn(made, plan);
  }
  return options;
}

void OrtGraph::append_qnn(ort::SessionOptions* options, const SessionPlan& plan) {
  const ort::Library& api = runtime_.api();
  // a node that would leave the NPU is an error that names it
  api.check(api->add_session_config(options, "session.disable_cpu_ep_fallback", "1"), what_);
  std::vector<const char*> keys;
  std::vector<const char*> values;
  for (const auto& [key, value] : plan.provider_options) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
  const ort::EpDevice* device = runtime_.qnn_device(plan.qnn_plugin);
  api.check(api->append_provider(options, runtime_.env(), &device, 1, keys.data(), values.data(), keys.size()), what_);
}

std::vector<OrtGraph::Port> OrtGraph::checked_ports(const Side& side, const std::vector<BoundaryTensor>& wanted) const {
  const ort::Library& api = runtime_.api();
  std::size_t count = 0;
  api.check((api.functions().*side.count)(session_.get(), &count), what_);
  if (count != wanted.size()) {
    throw RunnerError(what_ + " has " + std::to_string(count) + " " + side.name + "s, its manifest " +
                      std::to_string(wanted.size()) + "; model and manifest are of different exports");
  }
  for (std::size_t index = 0; index < count; ++index) {
    check_tensor(side, index, wanted);
  }
  std::vector<Port> ports;
  for (const BoundaryTensor& tensor : wanted) {
    ports.push_back({&tensor, shape_of(tensor), nullptr});
  }
  return ports;
}

void OrtGraph::check_tensor(const Side& side, std::size_t index, const std::vector<BoundaryTensor>& wanted) const {
  const ort::Library& api = runtime_.api();
  const std::string name = name_of(side, index);
  const auto tensor = std::find_if(wanted.begin(), wanted.end(), [&](const auto& one) { return one.name == name; });
  if (tensor == wanted.end()) {
    throw RunnerError(what_ + " has an " + side.name + " " + name +
                      " that its manifest lacks; model and manifest are of different exports");
  }
  ort::TypeInfo* made = nullptr;
  api.check((api.functions().*side.type)(session_.get(), index, &made), what_);
  const ort::Owned<ort::TypeInfo> type(made, api->release_type_info);
  const ort::TensorInfo* info = nullptr;
  api.check(api->tensor_of_type(made, &info), what_);
  int element = 0;
  std::vector<std::int64_t> shape;
  if (info != nullptr) {
    std::size_t rank = 0;
    api.check(api->tensor_element_type(info, &element), what_);
    api.check(api->tensor_rank(info, &rank), what_);
    shape.resize(rank);
    api.check(api->tensor_shape(info, shape.data(), rank), what_);
  }
  const int wanted_type = onnx_types().at(tensor->type);
  if (element != wanted_type || shape != shape_of(*tensor)) {
    throw RunnerError(what_ + ": " + side.name + " " + name + " is " + described(element, shape) + ", in its manifest " +
                      described(wanted_type, shape_of(*tensor)) + "; model and manifest are of different exports");
  }
}

std::string OrtGraph::name_of(const Side& side, std::size_t index) const {
  const ort::Library& api = runtime_.api();
  ort::Allocator* allocator = nullptr;
  api.check(api->default_allocator(&allocator), what_);
  char* text = nullptr;
  api.check((api.functions().*side.tensor_name)(session_.get(), index, allocator, &text), what_);
  const std::string name = text;
  api.check(api->allocator_free(allocator, text), what_);
  return name;
}

void OrtGraph::bind(Port& port, void* data, bool is_input) {
  const ort::Library& api = runtime_.api();
  const BoundaryTensor& tensor = *port.tensor;
  if (data == nullptr) {
    throw RunnerError(what_ + ": " + tensor.name + " was not given");
  }
  ort::Value* made = nullptr;
  api.check(api->create_tensor(memory_.get(), data, tensor.bytes(), port.shape.data(), port.shape.size(),
                               onnx_types().at(tensor.type), &made),
            what_ + ": " + tensor.name);
  const ort::Owned<ort::Value> value(made, api->release_value);
  const auto bind = is_input ? api->bind_input : api->bind_output;
  api.check(bind(binding_.get(), tensor.name.c_str(), made), what_ + ": " + tensor.name);
  port.bound = data;
}

}  // namespace hyco
