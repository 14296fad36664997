// Test executable: runs one part of the runner on the inputs of a safetensors file and prints the result as JSON.
// The metadata "probe" says what to run; tests/device_runner/native compares the result with the Python functions.
#include <chrono>
#include <exception>
#include <string>
#include <thread>

#include "affine.h"
#include "errors.h"
#include "json.h"
#include "kv_window.h"
#include "lines.h"
#include "ort_probe.h"
#include "rope.h"
#include "safetensors.h"
#include "sha256.h"
#include "tables.h"
#include "timing.h"
#include "topk.h"
#include "tree.h"

namespace hyco {

namespace {

Source source_of(const std::string& name) {
  for (std::size_t source = 0; source < kSourceNames.size(); ++source) {
    if (name == kSourceNames[source]) {
      return static_cast<Source>(source);
    }
  }
  throw RunnerError("no source " + name);
}

Json trimmed_json(const Trimmed& trimmed) {
  Json::Array parents;
  for (const auto& parent : trimmed.tree.parents) {
    parents.push_back(parent ? Json(*parent) : Json());
  }
  return Json::Object{{"token_ids", Json::array(trimmed.tree.tokens)},
                      {"parents", std::move(parents)},
                      {"scores", Json::array(trimmed.tree.scores)},
                      {"sources", Json::array(trimmed.tree.sources)},
                      {"nodes", Json::array(trimmed.nodes)}};
}

Json probe_tree(const Json& json) {
  GrowingTree tree(json.at("root").integer());
  for (const Json& add : json.at("adds").items()) {
    const Json::Array& fields = add.items();
    tree.add(fields.at(0).count(), fields.at(1).integer(), fields.at(2).number(), source_of(fields.at(3).text()));
  }
  Json::Array results;
  for (const Json& trim : json.at("trims").items()) {
    const std::size_t depth = trim.at("max_depth").count();
    Json::Object result = trimmed_json(tree.trim(trim.at("nodes").count(), depth, trim.at("always").counts())).fields();
    result["ranked"] = Json::array(tree.ranked(depth));
    results.push_back(std::move(result));
  }
  return results;
}

Json probe_topk(const Json& json, const SafetensorsFile& file) {
  std::vector<LogitsChunk> chunks;
  std::vector<std::vector<std::uint16_t>> codes;
  std::size_t rows = 0;
  for (const Json& chunk : json.at("chunks").items()) {
    const TensorView& view = file.tensor("codes_" + std::to_string(chunks.size()), "U16", 2);
    rows = view.shape[0];
    const Affine affine{static_cast<float>(chunk.at("scale").number()),
                        static_cast<std::int32_t>(chunk.at("zero_point").integer())};
    chunks.push_back({view.shape[1], affine});
    codes.push_back(elements<std::uint16_t>(view));
  }
  std::optional<double> softcap;
  if (json.has("softcap")) {
    softcap = json.at("softcap").number();
  }
  const CandidateScorer scorer(chunks, elements<Token>(file.tensor("token_ids", "I64", 1)), softcap,
                               {json.at("temperature").number(), json.at("bias").number()});
  Json::Array results;
  for (std::size_t row = 0; row < rows; ++row) {
    CodeRow code_row;
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk) {
      code_row.push_back(codes[chunk].data() + row * chunks[chunk].columns);
    }
    Json::Array candidates;
    for (const Candidate& candidate : scorer.best(code_row, json.at("count").count())) {
      candidates.push_back(Json::Array{candidate.token, candidate.log_probability});
    }
    results.push_back(Json::Object{{"best", std::move(candidates)}, {"likeliest", scorer.likeliest(code_row)}});
  }
  return results;
}

// State of a window: its counts, and hashes of the slots of every cache as a graph with `size` slots is given them.
Json window_json(const KvWindow& window, std::size_t size) {
  const std::size_t filled = window.accepted() + window.drafted();
  const std::size_t start = filled > size ? filled - size : 0;
  Json::Array hashes;
  for (std::size_t cache = 0; cache < window.shapes().size(); ++cache) {
    const auto [heads, dim, recent] = window.shapes()[cache];
    std::vector<std::uint8_t> keys(heads * dim * size);
    std::vector<std::uint8_t> values(heads * dim * size);
    window.copy_keys(cache, start, size, keys.data());
    window.copy_values(cache, start, size, values.data());
    hashes.push_back(sha256(keys.data(), keys.size()));
    hashes.push_back(sha256(values.data(), values.size()));
    if (window.drafted() == 0) {
      for (const std::size_t slots : {window.window(), recent}) {
        hashes.push_back(sha256(window.keys(cache, slots), heads * dim * slots));
        hashes.push_back(sha256(window.values(cache, slots), heads * dim * slots));
      }
    }
  }
  return Json::Object{{"next_position", window.next_position()},
                      {"accepted", window.accepted()},
                      {"drafted", window.drafted()},
                      {"hashes", std::move(hashes)}};
}

void step_window(KvWindow& window, const Json& step, const SafetensorsFile& file) {
  if (step.has("append")) {
    const std::string number = std::to_string(step.at("append").count());
    std::vector<NewRows> rows;
    std::size_t row_count = 0;
    for (std::size_t cache = 0; cache < window.shapes().size(); ++cache) {
      const std::string suffix = "." + number + "." + std::to_string(cache);
      const TensorView& keys = file.tensor("keys" + suffix, "U8", 3);
      row_count = keys.shape[2];
      rows.push_back({keys.data, file.tensor("values" + suffix, "U8", 3).data});
    }
    window.append(rows, row_count, step.at("positions").counts());
  } else if (step.has("accept")) {
    window.accept(step.at("accept").counts(), step.at("still_drafted").counts());
  } else {
    window.roll_back(step.at("roll_back").count());
  }
}

Json probe_window(const Json& json, const SafetensorsFile& file) {
  std::vector<CacheShape> shapes;
  for (const Json& shape : json.at("shapes").items()) {
    shapes.push_back({shape.counts().at(0), shape.counts().at(1), json.at("size").count()});
  }
  KvWindow window(shapes, json.at("window").count());
  Json::Array results;
  for (const Json& step : json.at("steps").items()) {
    std::string error;
    try {
      step_window(window, step, file);
    } catch (const RunnerError& problem) {
      error = problem.what();
    }
    Json::Object result = window_json(window, json.at("size").count()).fields();
    result["error"] = error;
    results.push_back(std::move(result));
  }
  return results;
}

template <typename Table>
Json rows_json(const Table& table, const std::vector<Token>& ids) {
  std::vector<float> values(ids.size() * table.width());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    table.lookup(ids[i], values.data() + i * table.width());
  }
  return sha256(reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(float));
}

Json probe_table(const Json& json) {
  const std::string& path = json.at("path").text();
  const std::vector<Token> ids = json.at("ids").integers();
  return json.at("kind").text() == "packed" ? rows_json(PackedTable(path), ids) : rows_json(EmbeddingTable(path), ids);
}

Json probe_encode(const Json& json, const SafetensorsFile& file) {
  BoundaryTensor tensor{"x", integer_type(json.at("dtype").text()), {}, {}};
  tensor.affine = {static_cast<float>(json.at("scale").number()),
                   static_cast<std::int32_t>(json.at("zero_point").integer())};
  const std::vector<float> values = elements<float>(file.tensor("values", "F32", 1));
  std::vector<std::uint16_t> codes(values.size());
  tensor.encode(values.data(), values.size(), codes.data());
  std::vector<float> decoded(values.size());
  tensor.decode(codes.data(), values.size(), decoded.data());
  const std::size_t bytes = values.size() * size_bytes(tensor.type);
  return Json::Array{sha256(reinterpret_cast<const std::uint8_t*>(codes.data()), bytes),
                     sha256(reinterpret_cast<const std::uint8_t*>(decoded.data()), decoded.size() * sizeof(float))};
}

Json probe_rotation(const Json& json) {
  const std::size_t dim = json.at("dim").count();
  const Rotation rotation({static_cast<float>(json.at("theta").number()), json.at("proportional").boolean(),
                           json.at("partial_rotary_factor").number()},
                          dim);
  Json::Array results;
  for (const std::size_t position : json.at("positions").counts()) {
    std::vector<float> cosines(dim);
    std::vector<float> sines(dim);
    rotation.write(position, cosines.data(), sines.data());
    const std::vector<double> wide_cosines(cosines.begin(), cosines.end());
    const std::vector<double> wide_sines(sines.begin(), sines.end());
    results.push_back(Json::Array{Json::array(wide_cosines), Json::array(wide_sines)});
  }
  return results;
}

// Phases inside phases, each asleep for as long as the test says.
Json probe_timing(const Json& json) {
  const auto sleep = [&](const char* phase) {
    std::this_thread::sleep_for(std::chrono::milliseconds(json.at(phase).count()));
  };
  Timing timing;
  {
    const Timed feeds(timing, Phase::kFeeds);
    sleep("feeds");
    {
      const Timed tables(timing, Phase::kTables);
      sleep("tables");
    }
    sleep("feeds");
  }
  sleep("nothing");
  for (const char* step : {"mtp_step_1", "mtp_step_2"}) {
    const Timed timed(timing, Phase::kHeadStep);
    sleep(step);
  }
  const Json::Object before = timing.parts();
  {
    const Timed timed(timing, Phase::kSlmPass);
    sleep("slm_pass_1");
  }
  return Json::Array{before, timing.parts()};
}

Json probe(const std::string& path) {
  const SafetensorsFile file(path);
  const Json json = Json::parse(file.metadata("probe"));
  const std::string& what = json.at("run").text();
  if (what == "tree") return probe_tree(json);
  if (what == "topk") return probe_topk(json, file);
  if (what == "window") return probe_window(json, file);
  if (what == "table") return probe_table(json);
  if (what == "encode") return probe_encode(json, file);
  if (what == "rotation") return probe_rotation(json);
  if (what == "timing") return probe_timing(json);
  if (what == "graph") return probe_graph(json, file);
  if (what == "sessions") return probe_sessions(json);
  throw RunnerError("nothing to run is called " + what);
}

}  // namespace

}  // namespace hyco

int main(int count, char** values) {
  try {
    if (count != 2) {
      throw hyco::UsageError("usage: hyco_probe FILE");
    }
    hyco::keep_stdout();
    hyco::print_line(hyco::Json::Object{{"result", hyco::probe(values[1])}});
    return 0;
  } catch (const std::exception& error) {
    hyco::print_line(hyco::Json::Object{{"error", std::string(error.what())}});
    return 1;
  }
}
