// Reader of safetensors files, mapped or in memory: 8 bytes length of the header, little-endian; the header in JSON; the tensors' bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mapped_file.h"

namespace hyco {

struct TensorView {
  std::string dtype;  // as the file spells it: "I8", "U8", "U16", "F32", "I64", ...
  std::vector<std::size_t> shape;
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

class SafetensorsFile {
 public:
  // Throws RunnerError naming the file for one that is absent or damaged: a tensor outside the file, or one whose
  // bytes are not those of its shape.
  explicit SafetensorsFile(const std::string& path);
  // A file's bytes in memory; `name` stands for its path in messages.
  SafetensorsFile(std::vector<std::uint8_t> bytes, std::string name);

  const std::string& path() const { return path_; }
  // "" where there is no such entry.
  std::string metadata(const std::string& name) const;
  bool has(const std::string& name) const { return tensors_.count(name) > 0; }
  // Throws RunnerError where there is none, or it has another type or number of dimensions.
  const TensorView& tensor(const std::string& name, const std::string& dtype, std::size_t dimensions) const;
  const TensorView& tensor(const std::string& name) const;

 private:
  void read(const std::uint8_t* data, std::size_t size);
  void read_header(const std::uint8_t* data, std::size_t size);

  std::string path_;
  std::optional<MappedFile> file_;
  std::vector<std::uint8_t> bytes_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, TensorView> tensors_;
};

// The elements of a tensor; safetensors does not align them for their type.
template <typename Element>
std::vector<Element> elements(const TensorView& view);

}  // namespace hyco
