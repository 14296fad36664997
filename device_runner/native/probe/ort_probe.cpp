#include "ort_probe.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "counted_new.h"
#include "errors.h"
#include "ort_graph.h"
#include "sha256.h"

namespace hyco {

namespace {

ort::Status* (*really_run)(ort::Session*, const ort::RunOptions*, const ort::IoBinding*) = nullptr;

ort::Status* uncounted_run(ort::Session* session, const ort::RunOptions* options, const ort::IoBinding* binding) {
  count_memory(false);
  ort::Status* status = really_run(session, options, binding);
  count_memory(true);
  return status;
}

SessionPlan plan_of(const Json& json) {
  SessionPlan plan;
  if (json.has("threads")) {
    plan.threads = static_cast<int>(json.at("threads").count());
  }
  for (const auto& [key, value] : json.at("entries").fields()) {
    plan.entries.emplace_back(key, value.text());
  }
  if (json.has("qnn_plugin")) {
    plan.qnn_plugin = json.at("qnn_plugin").text();
    for (const auto& [key, value] : json.at("provider_options").fields()) {
      plan.provider_options.emplace_back(key, value.text());
    }
  }
  return plan;
}

// Memory for a graph's inputs or outputs, `offset` bytes behind where an allocation starts.
struct Memory {
  Memory(const std::vector<BoundaryTensor>& tensors, std::size_t offset) : offset(offset) {
    for (const BoundaryTensor& tensor : tensors) {
      buffers.emplace_back(tensor.bytes() + offset);
    }
  }

  void fill(const std::vector<BoundaryTensor>& tensors, const SafetensorsFile& file, const std::string& prefix) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TensorView& view = file.tensor(prefix + tensors[i].name);
      if (view.bytes != tensors[i].bytes()) {
        throw RunnerError(prefix + tensors[i].name + " has " + std::to_string(view.bytes) + " bytes");
      }
      std::memcpy(buffers[i].data() + offset, view.data, view.bytes);
    }
  }

  template <typename Pointer>
  std::vector<Pointer> pointers() {
    std::vector<Pointer> all;
    for (std::vector<std::uint8_t>& buffer : buffers) {
      all.push_back(buffer.data() + offset);
    }
    return all;
  }

  Json hashes() {
    Json::Array all;
    for (const std::vector<std::uint8_t>& buffer : buffers) {
      all.push_back(sha256(buffer.data() + offset, buffer.size() - offset));
    }
    return all;
  }

  std::size_t offset;
  std::vector<std::vector<std::uint8_t>> buffers;
};

// Runs, and tells how often memory was taken meanwhile.
std::size_t counted(OrtGraph& graph, Memory& inputs, Memory& outputs) {
  const auto from = inputs.pointers<const void*>();
  const auto to = outputs.pointers<void*>();
  memory_taken();
  count_memory(true);
  graph.run(from, to);
  count_memory(false);
  return memory_taken();
}

std::size_t threads() {
  DIR* folder = opendir("/proc/self/task");
  std::size_t count = 0;
  while (folder != nullptr && readdir(folder) != nullptr) {
    ++count;
  }
  closedir(folder);
  return count - 2;  // . and ..
}

// Bytes that making a session with this severity writes to stderr.
std::size_t logged(OrtRuntime& runtime, const std::string& model, int severity) {
  char path[] = "/tmp/hyco_probe_XXXXXX";
  const int file = mkstemp(path);
  const int before = dup(STDERR_FILENO);
  dup2(file, STDERR_FILENO);
  const ort::Library& api = runtime.api();
  ort::SessionOptions* options = nullptr;
  ort::Session* session = nullptr;
  ort::Status* status = api->create_session_options(&options);
  if (status == nullptr) status = api->set_session_log_severity(options, severity);
  if (status == nullptr) status = api->create_session(runtime.env(), model.c_str(), options, &session);
  api->release_session(session);
  api->release_session_options(options);
  dup2(before, STDERR_FILENO);
  struct stat written = {};
  fstat(file, &written);
  close(before);
  close(file);
  unlink(path);
  api.check(status, "no session");
  return static_cast<std::size_t>(written.st_size);
}

}  // namespace

Json probe_graph(const Json& json, const SafetensorsFile& file) {
  const Bundle bundle = open_bundle(json.at("bundle").text());
  const GraphEntry& entry = bundle.manifest.graph(json.at("graph").text());
  OrtRuntime runtime(json.at("ort").text());
  really_run = runtime.api()->run_with_binding;
  runtime.replaceable().replaceable().run_with_binding = uncounted_run;
  OrtGraph graph(runtime, entry, json.at("model").text(), plan_of(json));
  Memory inputs(entry.boundary.inputs, 0);
  Memory outputs(entry.boundary.outputs, 0);
  Json::Array runs;
  inputs.fill(entry.boundary.inputs, file, "first.");
  counted(graph, inputs, outputs);
  runs.push_back(outputs.hashes());
  inputs.fill(entry.boundary.inputs, file, "second.");
  const std::size_t unmoved = counted(graph, inputs, outputs);
  runs.push_back(outputs.hashes());
  // as a window that has slid by one code of two bytes
  Memory moved_inputs(entry.boundary.inputs, 2);
  Memory moved_outputs(entry.boundary.outputs, 0);
  moved_inputs.fill(entry.boundary.inputs, file, "first.");
  const std::size_t moved = counted(graph, moved_inputs, moved_outputs);
  runs.push_back(moved_outputs.hashes());
  return Json::Object{{"runs", std::move(runs)}, {"taken", Json::Object{{"unmoved", unmoved}, {"moved", moved}}}};
}

Json probe_sessions(const Json& json) {
  const Bundle bundle = open_bundle(json.at("bundle").text());
  const GraphEntry& entry = bundle.manifest.graph(json.at("graph").text());
  const std::string& model = json.at("model").text();
  OrtRuntime runtime(json.at("ort").text());
  const std::size_t before = threads();
  std::size_t with_four = 0;
  {
    SessionPlan plan;
    plan.threads = 4;
    const OrtGraph graph(runtime, entry, model, plan);
    with_four = threads();
  }
  const std::size_t after = threads();
  std::vector<std::size_t> held;
  Memory inputs(entry.boundary.inputs, 0);
  Memory outputs(entry.boundary.outputs, 0);
  for (std::size_t session = 0; session < json.at("sessions").count(); ++session) {
    OrtGraph graph(runtime, entry, model, {});
    graph.run(inputs.pointers<const void*>(), outputs.pointers<void*>());
    held.push_back(mallinfo2().uordblks);
  }
  return Json::Object{{"version", runtime.api().version()},
                      {"threads", Json::Array{before, with_four, after}},
                      {"held", Json::array(held)},
                      {"logged", Json::Array{logged(runtime, model, 0), logged(runtime, model, ort::kLogErrors)}}};
}

}  // namespace hyco
