// ONNX Runtime's C API, opened at run time. Its table of functions only ever grows, so a function is known by its place
// in it; the few that are used are declared here, and no header of ONNX Runtime is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace hyco::ort {

// The runtime's own types; only pointers to them are passed.
struct Status;
struct Env;
struct Session;
struct SessionOptions;
struct RunOptions;
struct Value;
struct IoBinding;
struct MemoryInfo;
struct Allocator;
struct TypeInfo;
struct TensorInfo;
struct EpDevice;

// Values of the runtime's enumerations.
inline constexpr int kLogErrors = 3;
inline constexpr int kNoOptimization = 0;
inline constexpr int kArenaAllocator = 1;
inline constexpr int kDefaultMemory = 0;

// The functions that are used, as the table has them. All that return a Status give null where they succeed.
struct Functions {
  const char* (*get_error_message)(const Status*);
  Status* (*create_env)(int severity, const char* log_id, Env**);
  Status* (*create_session)(const Env*, const char* path, const SessionOptions*, Session**);
  Status* (*create_session_options)(SessionOptions**);
  Status* (*set_session_log_severity)(SessionOptions*, int severity);
  Status* (*set_optimization_level)(SessionOptions*, int level);
  Status* (*set_intra_op_threads)(SessionOptions*, int count);
  Status* (*session_input_count)(const Session*, std::size_t*);
  Status* (*session_output_count)(const Session*, std::size_t*);
  Status* (*session_input_type)(const Session*, std::size_t, TypeInfo**);
  Status* (*session_output_type)(const Session*, std::size_t, TypeInfo**);
  Status* (*session_input_name)(const Session*, std::size_t, Allocator*, char**);
  Status* (*session_output_name)(const Session*, std::size_t, Allocator*, char**);
  Status* (*create_tensor)(const MemoryInfo*, void*, std::size_t bytes, const std::int64_t* shape, std::size_t rank,
                           int type, Value**);
  Status* (*tensor_of_type)(const TypeInfo*, const TensorInfo**);
  Status* (*tensor_element_type)(const TensorInfo*, int*);
  Status* (*tensor_rank)(const TensorInfo*, std::size_t*);
  Status* (*tensor_shape)(const TensorInfo*, std::int64_t*, std::size_t rank);
  Status* (*create_cpu_memory_info)(int allocator, int memory, MemoryInfo**);
  Status* (*allocator_free)(Allocator*, void*);
  Status* (*default_allocator)(Allocator**);
  void (*release_env)(Env*);
  void (*release_status)(Status*);
  void (*release_memory_info)(MemoryInfo*);
  void (*release_session)(Session*);
  void (*release_value)(Value*);
  void (*release_type_info)(TypeInfo*);
  void (*release_session_options)(SessionOptions*);
  Status* (*add_session_config)(SessionOptions*, const char* key, const char* value);
  Status* (*run_with_binding)(Session*, const RunOptions*, const IoBinding*);
  Status* (*create_binding)(Session*, IoBinding**);
  void (*release_binding)(IoBinding*);
  Status* (*bind_input)(IoBinding*, const char* name, const Value*);
  Status* (*bind_output)(IoBinding*, const char* name, const Value*);
  Status* (*register_provider)(Env*, const char* name, const char* path);
  Status* (*provider_devices)(const Env*, const EpDevice* const**, std::size_t*);
  Status* (*append_provider)(SessionOptions*, Env*, const EpDevice* const*, std::size_t, const char* const* keys,
                             const char* const* values, std::size_t options);
  const char* (*device_provider)(const EpDevice*);
};

// An object of the runtime with the function that lets it go.
template <typename Object>
using Owned = std::unique_ptr<Object, void (*)(Object*)>;

// The opened library. It stays loaded until the process ends: a plugin's threads may outlive any session.
class Library {
 public:
  // Throws RunnerError for a file that is no shared library of ONNX Runtime, and for a version too old.
  explicit Library(const std::string& path);

  const std::string& version() const { return version_; }
  const Functions& functions() const { return functions_; }
  const Functions* operator->() const { return &functions_; }
  // Puts another function in a function's place; for tests, which count or replace calls.
  Functions& replaceable() { return functions_; }

  // Throws RunnerError with `what` and the first line of the runtime's message unless `status` is null.
  void check(Status* status, const std::string& what) const;

 private:
  std::string version_;
  Functions functions_;
};

// The path made absolute: ONNX Runtime and QNN look in other places for a relative one. Throws RunnerError naming a file
// that is not there.
std::string absolute_path(const std::string& path);

}  // namespace hyco::ort
