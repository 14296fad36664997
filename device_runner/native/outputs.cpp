#include "outputs.h"

#include <map>

#include "errors.h"

namespace hyco {

namespace {

constexpr const char* kPrefix = "logits_";

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 6 && text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

OutputBuffers::OutputBuffers(const Boundary& boundary) : tensors_(&boundary.outputs) {
  std::map<int, std::size_t> logits;
  for (std::size_t index = 0; index < tensors_->size(); ++index) {
    const BoundaryTensor& tensor = (*tensors_)[index];
    buffers_.emplace_back(tensor.bytes());
    pointers_.push_back(buffers_.back().data());
    const std::string prefix = kPrefix;
    if (tensor.name.compare(0, prefix.size(), prefix) == 0 && is_number(tensor.name.substr(prefix.size()))) {
      logits[std::stoi(tensor.name.substr(prefix.size()))] = index;
    }
  }
  for (const auto& [number, index] : logits) {
    if ((*tensors_)[index].type != IntegerType::kUint16 || (*tensors_)[index].shape.empty()) {
      throw RunnerError("output " + (*tensors_)[index].name + " is not uint16; export the graph again");
    }
    logits_.push_back(index);
  }
}

std::size_t OutputBuffers::index(const std::string& name) const {
  for (std::size_t index = 0; index < tensors_->size(); ++index) {
    if ((*tensors_)[index].name == name) {
      return index;
    }
  }
  throw RunnerError("the graph has no output " + name + "; graph and configuration are of different exports");
}

std::vector<LogitsChunk> OutputBuffers::chunks() const {
  std::vector<LogitsChunk> chunks;
  for (const std::size_t index : logits_) {
    chunks.push_back({(*tensors_)[index].shape.back(), (*tensors_)[index].affine});
  }
  return chunks;
}

CodeRow OutputBuffers::logits(std::size_t row) const {
  CodeRow codes;
  for (const std::size_t index : logits_) {
    const auto* first = reinterpret_cast<const std::uint16_t*>(buffers_[index].data());
    codes.push_back(first + row * (*tensors_)[index].shape.back());
  }
  return codes;
}

}  // namespace hyco
