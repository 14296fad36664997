#include "replay.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "drafter.h"
#include "errors.h"
#include "events.h"
#include "lines.h"
#include "safetensors.h"

namespace hyco {

namespace {

class Recording {
 public:
  explicit Recording(const std::string& path) : file_(path), json_(Json::parse(file_.metadata("recording"))) {
    require_schema(json_, path);
    for (const Json& call : json_.at("calls").items()) {
      calls_.push_back(call.text());
    }
  }

  const Json& json() const { return json_; }
  const SafetensorsFile& file() const { return file_; }
  std::size_t calls_left() const { return calls_.size() - next_; }

  // Number of the call that a graph makes now.
  std::size_t take_call(const std::string& graph) {
    if (next_ == calls_.size() || calls_[next_] != graph) {
      throw RunnerError("call " + std::to_string(next_) + " is to graph " + graph + ", the recording has " +
                        (next_ == calls_.size() ? "no more" : calls_[next_]));
    }
    return next_++;
  }

 private:
  SafetensorsFile file_;
  Json json_;
  std::vector<std::string> calls_;
  std::size_t next_ = 0;
};

std::int32_t code_at(const BoundaryTensor& tensor, const void* codes, std::size_t index) {
  const auto* bytes = static_cast<const std::uint8_t*>(codes) + index * size_bytes(tensor.type);
  std::uint16_t code = 0;
  std::memcpy(&code, bytes, size_bytes(tensor.type));
  switch (tensor.type) {
    case IntegerType::kInt8:
      return static_cast<std::int8_t>(code);
    case IntegerType::kInt16:
      return static_cast<std::int16_t>(code);
    default:
      return code;
  }
}

// Cosines and sines of two mathematical libraries may differ in their last bit, and then by one code.
int tolerance_of(const BoundaryTensor& tensor) {
  return tensor.name.compare(0, 4, "cos_") == 0 || tensor.name.compare(0, 4, "sin_") == 0 ? 1 : 0;
}

class RecordedGraph : public Graph {
 public:
  RecordedGraph(Recording& recording, const GraphEntry& entry) : recording_(recording), entry_(entry) {}

  const Boundary& boundary() const override { return entry_.boundary; }

  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) override {
    const std::string call = "call." + std::to_string(recording_.take_call(entry_.name));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const BoundaryTensor& tensor = entry_.boundary.inputs[i];
      if (recording_.file().has(call + ".in." + tensor.name)) {
        compare(call, tensor, inputs[i]);
      }
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const BoundaryTensor& tensor = entry_.boundary.outputs[i];
      std::memcpy(outputs[i], recorded(call + ".out." + tensor.name, tensor), tensor.bytes());
    }
  }

 private:
  const std::uint8_t* recorded(const std::string& name, const BoundaryTensor& tensor) const {
    const TensorView& view = recording_.file().tensor(name);
    if (view.bytes != tensor.bytes()) {
      throw RunnerError(name + " has " + std::to_string(view.bytes) + " bytes, the graph " +
                        std::to_string(tensor.bytes()));
    }
    return view.data;
  }

  void compare(const std::string& call, const BoundaryTensor& tensor, const void* codes) const {
    const std::string name = call + ".in." + tensor.name;
    const std::uint8_t* wanted = recorded(name, tensor);
    if (codes == nullptr) {
      throw RunnerError(name + " was not given");
    }
    if (std::memcmp(codes, wanted, tensor.bytes()) == 0) {
      return;
    }
    for (std::size_t i = 0; i < tensor.elements(); ++i) {
      const std::int32_t here = code_at(tensor, codes, i);
      const std::int32_t there = code_at(tensor, wanted, i);
      if (std::abs(here - there) > tolerance_of(tensor)) {
        throw RunnerError(name + ": code " + std::to_string(i) + " is " + std::to_string(here) + ", recorded was " +
                          std::to_string(there));
      }
    }
  }

  Recording& recording_;
  const GraphEntry& entry_;
};

void play(const Json& event, const Recording& recording, LoadedBundles& loaded, HybridDrafter& drafter) {
  const auto update = [&] { return update_of(recording.file(), event.at("update").count(), loaded.head()); };
  const std::string& what = event.at("event").text();
  if (what == "draft") {
    const DraftTree tree = drafter.draft(event.at("max_depth").count());
    print_line(Json::Object{{"tree", tree_json(tree)}, {"milliseconds", drafter.take_timing().parts()}});
  } else if (what == "begin") {
    drafter.begin(event.at("token_ids").integers(), {{}, event.at("emitted").integers(), update()});
  } else if (what == "commit") {
    drafter.commit({event.at("accepted").counts(), event.at("emitted").integers(), update()});
  } else {
    throw RunnerError("the recording has an event \"" + what + "\"; known are begin, draft and commit");
  }
}

}  // namespace

void replay(const std::string& mtp_folder, const std::string& slm_folder, const std::string& path) {
  Recording recording(path);
  const OpenGraph open = [&](const Bundle& /*bundle*/, const GraphEntry& entry) {
    return std::make_unique<RecordedGraph>(recording, entry);
  };
  LoadedBundles loaded(mtp_folder, slm_folder, open);
  const auto drafter = loaded.drafter(round_settings(recording.json().at("config")));
  for (const Json& event : recording.json().at("events").items()) {
    play(event, recording, loaded, *drafter);
  }
  if (recording.calls_left() > 0) {
    throw RunnerError(std::to_string(recording.calls_left()) + " calls of the recording were not made");
  }
}

}  // namespace hyco
