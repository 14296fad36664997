#include "safetensors.h"

#include <cstring>
#include <utility>

#include "errors.h"
#include "json.h"

namespace hyco {

namespace {

constexpr std::size_t kLengthBytes = 8;

std::size_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::size_t> sizes = {{"I8", 1},  {"U8", 1},  {"BOOL", 1}, {"I16", 2}, {"U16", 2},
                                                           {"I32", 4}, {"F32", 4}, {"I64", 8},  {"F64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

TensorView view_of(const Json& entry, const std::uint8_t* data, std::size_t size) {
  TensorView view;
  view.dtype = entry.at("dtype").text();
  view.shape = entry.at("shape").counts();
  const std::vector<std::size_t> offsets = entry.at("data_offsets").counts();
  if (offsets.size() != 2) {
    throw RunnerError("a tensor has " + std::to_string(offsets.size()) + " offsets, not two");
  }
  const std::size_t start = offsets[0];
  const std::size_t stop = offsets[1];
  std::size_t bytes = element_bytes(view.dtype);
  for (const std::size_t length : view.shape) {
    if (__builtin_mul_overflow(bytes, length, &bytes)) {
      throw RunnerError("a tensor's shape is larger than any file");
    }
  }
  if (start > stop || stop > size || (bytes != stop - start && element_bytes(view.dtype) > 0)) {
    throw RunnerError("a tensor of type " + view.dtype + " lies at bytes " + std::to_string(start) + " to " +
                      std::to_string(stop) + " of " + std::to_string(size) + ", which is not what its shape takes");
  }
  view.data = data + start;
  view.bytes = stop - start;
  return view;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), file_(path) {
  read(file_->data(), file_->size());
}

SafetensorsFile::SafetensorsFile(std::vector<std::uint8_t> bytes, std::string name)
    : path_(std::move(name)), bytes_(std::move(bytes)) {
  read(bytes_.data(), bytes_.size());
}

void SafetensorsFile::read(const std::uint8_t* data, std::size_t size) {
  try {
    read_header(data, size);
  } catch (const RunnerError& error) {
    throw RunnerError(path_ + " cannot be read as a safetensors file (" + error.what() + "); make it again");
  }
}

void SafetensorsFile::read_header(const std::uint8_t* file, std::size_t file_size) {
  std::uint64_t length = 0;
  if (file_size < kLengthBytes) {
    throw RunnerError("it has " + std::to_string(file_size) + " bytes");
  }
  std::memcpy(&length, file, kLengthBytes);
  if (length > file_size - kLengthBytes) {
    throw RunnerError("its header would be " + std::to_string(length) + " bytes long");
  }
  const std::uint8_t* data = file + kLengthBytes + length;
  const std::size_t size = file_size - kLengthBytes - length;
  const Json header = Json::parse(std::string(file + kLengthBytes, data));
  for (const auto& [name, entry] : header.fields()) {
    if (name == "__metadata__") {
      for (const auto& [key, value] : entry.fields()) {
        metadata_[key] = value.text();
      }
    } else {
      tensors_.emplace(name, view_of(entry, data, size));
    }
  }
}

std::string SafetensorsFile::metadata(const std::string& name) const {
  const auto found = metadata_.find(name);
  return found == metadata_.end() ? "" : found->second;
}

const TensorView& SafetensorsFile::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw RunnerError(path() + " has no tensor " + name);
  }
  return found->second;
}

const TensorView& SafetensorsFile::tensor(const std::string& name, const std::string& dtype,
                                          std::size_t dimensions) const {
  const TensorView& view = tensor(name);
  if (view.dtype != dtype || view.shape.size() != dimensions) {
    throw RunnerError(path() + ": tensor " + name + " is " + view.dtype + " with " + std::to_string(view.shape.size()) +
                      " dimensions; " + dtype + " with " + std::to_string(dimensions) + " is needed");
  }
  return view;
}

template <typename Element>
std::vector<Element> elements(const TensorView& view) {
  std::vector<Element> values(view.bytes / sizeof(Element));
  if (!values.empty()) {
    std::memcpy(values.data(), view.data, values.size() * sizeof(Element));
  }
  return values;
}

template std::vector<std::uint8_t> elements(const TensorView&);
template std::vector<std::uint16_t> elements(const TensorView&);
template std::vector<std::int64_t> elements(const TensorView&);
template std::vector<float> elements(const TensorView&);

}  // namespace hyco
