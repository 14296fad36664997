#include "feeds.h"

#include <algorithm>

#include "errors.h"

namespace hyco {

namespace {

// Every `step`-th of `count` codes, written one after the other.
template <typename Code>
void gather(const std::uint8_t* source, std::size_t step, std::size_t count, std::uint8_t* target) {
  const auto* from = reinterpret_cast<const Code*>(source);
  auto* to = reinterpret_cast<Code*>(target);
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = from[i * step];
  }
}

}  // namespace

InputBuffers::InputBuffers(const Boundary& boundary)
    : tensors_(&boundary.inputs), buffers_(boundary.inputs.size()), pointers_(boundary.inputs.size(), nullptr) {}

std::size_t InputBuffers::index(const std::string& name) const {
  for (std::size_t index = 0; index < tensors_->size(); ++index) {
    if ((*tensors_)[index].name == name) {
      return index;
    }
  }
  throw RunnerError("the graph has no input " + name + "; graph and configuration are of different exports");
}

std::uint8_t* InputBuffers::buffer(std::size_t index) {
  std::vector<std::uint8_t>& buffer = buffers_.at(index);
  if (buffer.empty()) {
    buffer.resize((*tensors_)[index].bytes());
  }
  pointers_[index] = buffer.data();
  return buffer.data();
}

void InputBuffers::encode(std::size_t index, const float* values, std::size_t elements) {
  const BoundaryTensor& tensor = (*tensors_)[index];
  if (tensor.elements() != elements) {
    throw RunnerError("input " + tensor.name + " has " + std::to_string(tensor.elements()) + " elements, given are " +
                      std::to_string(elements));
  }
  tensor.encode(values, elements, buffer(index));
}

HeadFeeds::HeadFeeds(const HeadConfig& config, const Boundary& boundary)
    : config_(config), inputs_(boundary), embedding_(inputs_.index("embedding")), hidden_(inputs_.index("hidden")) {
  for (std::size_t kind = 0; kind < config_.kinds.size(); ++kind) {
    if (config_.kinds[kind]) {
      add_kind(static_cast<Kind>(kind), *config_.kinds[kind]);
    }
  }
}

void HeadFeeds::add_kind(Kind kind, const KindShape& shape) {
  const std::string name = kKindNames[static_cast<std::size_t>(kind)];
  const std::size_t keys = inputs_.index("keys_" + name);
  const std::size_t values = inputs_.index("values_" + name);
  const auto& tensors = inputs_.tensors();
  const std::size_t elements = shape.heads * shape.dim * config_.window;
  if (tensors[keys].elements() != elements || tensors[values].elements() != elements) {
    throw RunnerError("input keys_" + name + " has " + std::to_string(tensors[keys].elements()) + " elements, " +
                      std::to_string(elements) + " follow from the configuration");
  }
  const std::size_t key_bytes = size_bytes(tensors[keys].type);
  const std::size_t value_bytes = size_bytes(tensors[values].type);
  kinds_.push_back({kind, keys, values, inputs_.index("mask_" + name), inputs_.index("cos_" + name),
                    inputs_.index("sin_" + name), SlotPlane(shape.heads * shape.dim, config_.window, key_bytes),
                    SlotPlane(shape.heads, config_.window, shape.dim * value_bytes), Rotation(shape.rope, shape.dim)});
  // empty slots hold the code of 0
  tensors[keys].fill(0.0F, elements, kinds_.back().key_slots.data());
  tensors[values].fill(0.0F, elements, kinds_.back().value_slots.data());
}

void HeadFeeds::extend(const HeadUpdate& update) {
  for (const OfKind& of_kind : kinds_) {
    const auto which = static_cast<std::size_t>(of_kind.kind);
    const KindShape& shape = *config_.kinds[which];
    const std::size_t elements = shape.heads * update.rows * shape.dim;
    if (update.keys[which].size() != elements || update.values[which].size() != elements) {
      throw RunnerError("a reply has " + std::to_string(update.keys[which].size()) + " numbers of keys for " +
                        std::to_string(update.rows) + " rows, " + std::to_string(elements) + " are needed");
    }
  }
  const std::size_t added = std::min(update.rows, config_.window);
  const std::size_t stay = std::min(rows_, config_.window - added);
  for (OfKind& of_kind : kinds_) {
    of_kind.key_slots.slide(rows_ - stay);
    of_kind.value_slots.slide(rows_ - stay);
    store(of_kind, update, update.rows - added, stay);
  }
  rows_ = stay + added;
}

void HeadFeeds::store(OfKind& of_kind, const HeadUpdate& update, std::size_t skipped, std::size_t first_slot) {
  const auto which = static_cast<std::size_t>(of_kind.kind);
  const auto [heads, dim, rope] = *config_.kinds[which];
  const BoundaryTensor& keys = inputs_.tensors()[of_kind.keys];
  const BoundaryTensor& values = inputs_.tensors()[of_kind.values];
  const std::size_t width = size_bytes(keys.type);
  const std::size_t count = update.rows - skipped;
  std::vector<std::uint8_t> codes(count * dim * width);
  for (std::size_t head = 0; head < heads; ++head) {
    const std::size_t start = (head * update.rows + skipped) * dim;
    keys.encode(update.keys[which].data() + start, count * dim, codes.data());
    // line by line: neighbouring slots of a line share a cache line, neighbouring lines do not
    for (std::size_t i = 0; i < dim; ++i) {
      std::uint8_t* slots = of_kind.key_slots.at(head * dim + i, first_slot);
      if (width == 1) {
        gather<std::uint8_t>(codes.data() + i, dim, count, slots);
      } else {
        gather<std::uint16_t>(codes.data() + i * width, dim, count, slots);
      }
    }
    values.encode(update.values[which].data() + start, count * dim, of_kind.value_slots.at(head, first_slot));
  }
}

void HeadFeeds::begin(std::size_t position) {
  const std::size_t at = position - (config_.position_before && position > 0 ? 1 : 0);
  for (OfKind& of_kind : kinds_) {
    const KindShape& shape = *config_.kinds[static_cast<std::size_t>(of_kind.kind)];
    const std::size_t visible = of_kind.kind == Kind::kSliding ? std::min(rows_, config_.sliding_window) : rows_;
    std::vector<float> mask(config_.window, kMasked);
    std::fill_n(mask.begin() + static_cast<std::ptrdiff_t>(rows_ - visible), visible, 0.0F);
    inputs_.encode(of_kind.mask, mask.data(), mask.size());
    std::vector<float> cosines(shape.dim);
    std::vector<float> sines(shape.dim);
    of_kind.rotation.write(at, cosines.data(), sines.data());
    inputs_.encode(of_kind.cosines, cosines.data(), shape.dim);
    inputs_.encode(of_kind.sines, sines.data(), shape.dim);
    inputs_.point(of_kind.keys, of_kind.key_slots.data());
    inputs_.point(of_kind.values, of_kind.value_slots.data());
  }
}

const std::vector<const void*>& HeadFeeds::step(const float* embedding, const float* hidden) {
  inputs_.encode(embedding_, embedding, config_.backbone);
  inputs_.encode(hidden_, hidden, config_.backbone);
  return inputs_.pointers();
}

}  // namespace hyco
