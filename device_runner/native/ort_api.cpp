#include "ort_api.h"

#include <dlfcn.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "errors.h"

namespace hyco::ort {

namespace {

// The version that introduced the last function that is used, and later ones hold the same table.
constexpr std::uint32_t kApiVersion = 24;

struct ApiBase {
  const void* const* (*get_api)(std::uint32_t version);
  const char* (*version)();
};

template <typename Function>
void take(const void* const* table, std::size_t slot, Function*& function) {
  function = reinterpret_cast<Function*>(const_cast<void*>(table[slot]));
}

void take_session(const void* const* table, Functions& functions) {
  take(table, 7, functions.create_session);
  take(table, 10, functions.create_session_options);
  take(table, 22, functions.set_session_log_severity);
  take(table, 23, functions.set_optimization_level);
  take(table, 24, functions.set_intra_op_threads);
  take(table, 30, functions.session_input_count);
  take(table, 31, functions.session_output_count);
  take(table, 33, functions.session_input_type);
  take(table, 34, functions.session_output_type);
  take(table, 36, functions.session_input_name);
  take(table, 37, functions.session_output_name);
  take(table, 95, functions.release_session);
  take(table, 100, functions.release_session_options);
  take(table, 130, functions.add_session_config);
}

void take_tensor(const void* const* table, Functions& functions) {
  take(table, 49, functions.create_tensor);
  take(table, 55, functions.tensor_of_type);
  take(table, 60, functions.tensor_element_type);
  take(table, 61, functions.tensor_rank);
  take(table, 62, functions.tensor_shape);
  take(table, 69, functions.create_cpu_memory_info);
  take(table, 76, functions.allocator_free);
  take(table, 78, functions.default_allocator);
  take(table, 94, functions.release_memory_info);
  take(table, 96, functions.release_value);
  take(table, 98, functions.release_type_info);
}

void take_binding(const void* const* table, Functions& functions) {
  take(table, 133, functions.run_with_binding);
  take(table, 134, functions.create_binding);
  take(table, 135, functions.release_binding);
  take(table, 136, functions.bind_input);
  take(table, 137, functions.bind_output);
}

void take_environment(const void* const* table, Functions& functions) {
  take(table, 2, functions.get_error_message);
  take(table, 3, functions.create_env);
  take(table, 92, functions.release_env);
  take(table, 93, functions.release_status);
  take(table, 301, functions.register_provider);
  take(table, 303, functions.provider_devices);
  take(table, 304, functions.append_provider);
  take(table, 312, functions.device_provider);
}

}  // namespace

Library::Library(const std::string& path) {
  const std::string absolute = absolute_path(path);
  void* library = dlopen(absolute.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw RunnerError(path + " cannot be loaded as ONNX Runtime: " + dlerror());
  }
  const auto get_base = reinterpret_cast<const ApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  if (get_base == nullptr) {
    dlclose(library);
    throw RunnerError(path + " is not ONNX Runtime: it has no OrtGetApiBase; give the path of libonnxruntime.so");
  }
  const ApiBase* base = get_base();
  version_ = base->version();
  const void* const* table = base->get_api(kApiVersion);
  if (table == nullptr) {
    throw RunnerError(path + " is ONNX Runtime " + version_ + ", which lacks version " + std::to_string(kApiVersion) +
                      " of the C interface; bring 1." + std::to_string(kApiVersion) + " or newer");
  }
  take_environment(table, functions_);
  take_session(table, functions_);
  take_tensor(table, functions_);
  take_binding(table, functions_);
}

void Library::check(Status* status, const std::string& what) const {
  if (status == nullptr) {
    return;
  }
  const std::string message = functions_.get_error_message(status);
  functions_.release_status(status);
  throw RunnerError(what + ": " + message.substr(0, message.find('\n')));
}

std::string absolute_path(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) == nullptr) {
    throw RunnerError(path + " cannot be opened: " + std::strerror(errno));
  }
  return resolved;
}

}  // namespace hyco::ort
