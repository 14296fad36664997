#include "manifest.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "errors.h"
#include "mapped_file.h"
#include "sha256.h"

namespace hyco {

namespace {

constexpr std::int64_t kNewestSchema = 2;
constexpr const char* kManifestName = "manifest.json";

std::string text_or_empty(const Json& object, const char* name, const char* field) {
  return object.has(name) ? object.at(name).at(field).text() : "";
}

std::string read_text(const std::string& path) {
  const MappedFile file(path);
  return {file.data(), file.data() + file.size()};
}

std::vector<BoundaryTensor> tensors_of(const Json& list) {
  std::vector<BoundaryTensor> tensors;
  for (const Json& entry : list.items()) {
    const std::string& name = entry.at("name").text();
    if (!entry.has("scale") || !entry.has("zero_point")) {
      throw RunnerError("tensor " + name + " has no scale; the boundary of an NPU graph is quantised");
    }
    BoundaryTensor tensor{name, integer_type(entry.at("dtype").text()), entry.at("shape").counts(), {}};
    tensor.affine.scale = static_cast<float>(entry.at("scale").number());
    tensor.affine.zero_point = static_cast<std::int32_t>(entry.at("zero_point").integer());
    if (!(tensor.affine.scale > 0)) {
      throw RunnerError("tensor " + name + " has a scale that is not above 0");
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

GraphEntry graph_of(const Json& entry) {
  GraphEntry graph{entry.at("name").text(), entry.at("rows").count(), {}, {}};
  for (const auto& [role, path] : entry.at("files").fields()) {
    graph.files[role] = path.text();
  }
  graph.boundary.inputs = tensors_of(entry.at("inputs"));
  graph.boundary.outputs = tensors_of(entry.at("outputs"));
  return graph;
}

// Major, minor and patch of "2.51" or "v2.51.0.260929181845": the build's number does not decide.
std::array<long, 3> numbers_of(const std::string& version) {
  std::array<long, 3> numbers{};
  std::istringstream parts(version.substr(version.rfind('v', 0) == 0 ? 1 : 0));
  std::size_t count = 0;
  for (std::string part; count < numbers.size() && std::getline(parts, part, '.'); ++count) {
    if (part.empty() || part.size() > 9 || part.find_first_not_of("0123456789") != std::string::npos) {
      throw UsageError("version \"" + version + "\" is not numbers with points between them");
    }
    numbers[count] = std::stol(part);
  }
  if (count < 2) {
    throw UsageError("version \"" + version + "\" is not numbers with points between them");
  }
  return numbers;
}

std::size_t arch_of(const std::string& name) {
  if (name.size() < 2 || name.size() > 5 || name[0] != 'v' ||
      name.find_first_not_of("0123456789", 1) != std::string::npos) {
    throw RunnerError("htp_arch is \"" + name + "\", not like v81");
  }
  return static_cast<std::size_t>(std::stoi(name.substr(1)));
}

TargetEntry target_of(const Json& entry) {
  TargetEntry target;
  target.name = entry.at("target").text();
  target.compiled = entry.at("compiled").boolean();
  target.soc_model = entry.at("soc_model").count();
  target.htp_arch = arch_of(entry.at("htp_arch").text());
  if (entry.has("qnn_version")) {
    target.qnn_version = entry.at("qnn_version").text();
  }
  if (target.compiled) {
    numbers_of(target.qnn_version);
  }
  return target;
}

Manifest manifest_of(const Json& json) {
  Manifest manifest;
  manifest.schema_version = json.at("schema_version").integer();
  if (manifest.schema_version < 1 || manifest.schema_version > kNewestSchema) {
    throw RunnerError("schema_version is " + std::to_string(manifest.schema_version) + "; this runner reads 1 to " +
                      std::to_string(kNewestSchema) + ": install a newer hyco-npu");
  }
  manifest.kind = json.at("kind").text();
  if (manifest.kind != "mtp" && manifest.kind != "slm") {
    throw RunnerError("kind is \"" + manifest.kind + "\"; known are mtp and slm");
  }
  manifest.window = json.at("window").count();
  manifest.position_rule = json.at("position_rule").text();
  const Json& keep = json.at("keep_set");
  manifest.keep_set = {keep.at("file").text(), keep.at("size").count(), keep.at("sha256").text(),
                       keep.at("vocab_size").count()};
  for (const Json& entry : json.at("graphs").items()) {
    manifest.graphs.push_back(graph_of(entry));
  }
  manifest.table = text_or_empty(json, "table", "file");
  manifest.per_layer_table = text_or_empty(json, "per_layer_table", "file");
  manifest.draft_graph = text_or_empty(json, "slm", "draft_graph");
  manifest.prefill_graph = text_or_empty(json, "slm", "prefill_graph");
  for (const Json& entry : json.at("targets").items()) {
    manifest.targets.push_back(target_of(entry));
  }
  for (const Json& entry : json.at("files").items()) {
    manifest.files.push_back({entry.at("path").text(), entry.at("size_bytes").count(), entry.at("sha256").text()});
  }
  manifest.config = json.at("source").at("config");
  return manifest;
}

Kind kind_of(const std::string& layer_type) {
  if (layer_type == "sliding_attention") {
    return Kind::kSliding;
  }
  if (layer_type == "full_attention") {
    return Kind::kFull;
  }
  throw RunnerError("layer type " + layer_type + " is not known; known are sliding_attention and full_attention");
}

KindShapes kind_shapes(const Json& config) {
  KindShapes shapes;
  for (const Json& layer : config.at("layers").items()) {
    auto& shape = shapes[static_cast<std::size_t>(kind_of(layer.at("kind").text()))];
    if (!shape) {
      shape = KindShape{layer.at("num_key_value_heads").count(), layer.at("head_dim").count(), {}};
    }
  }
  for (const Json& rope : config.at("ropes").items()) {
    auto& shape = shapes[static_cast<std::size_t>(kind_of(rope.at("kind").text()))];
    if (shape) {
      shape->rope = {static_cast<float>(rope.at("theta").number()), rope.at("rope_type").text() == "proportional",
                     rope.at("partial_rotary_factor").number()};
    }
  }
  return shapes;
}

void require_kind(const Bundle& bundle, const char* kind) {
  if (bundle.manifest.kind != kind) {
    throw RunnerError("bundle " + bundle.folder + " is of kind " + bundle.manifest.kind + ", not " + kind);
  }
}

// The keep set's own hash: of vocab_size and the ids as little-endian int64.
std::string keep_set_hash(std::size_t vocab_size, const std::vector<Token>& ids) {
  std::vector<std::uint8_t> bytes;
  const auto append = [&](std::uint64_t value) {
    for (unsigned shift = 0; shift < 64; shift += 8) {
      bytes.push_back(static_cast<std::uint8_t>(value >> shift));
    }
  };
  append(vocab_size);
  for (const Token id : ids) {
    append(static_cast<std::uint64_t>(id));
  }
  return sha256(bytes.data(), bytes.size());
}

}  // namespace

const GraphEntry& Manifest::graph(const std::string& name) const {
  std::string known;
  for (const GraphEntry& entry : graphs) {
    if (entry.name == name) {
      return entry;
    }
    known += (known.empty() ? "" : ", ") + entry.name;
  }
  throw RunnerError("the bundle has no graph \"" + name + "\"; it has: " + (known.empty() ? "none" : known));
}

std::string Bundle::path(const std::string& relative) const {
  std::istringstream parts(relative);
  bool inside = !relative.empty() && relative.front() != '/' && relative.find('\\') == std::string::npos;
  for (std::string part; std::getline(parts, part, '/');) {
    inside = inside && !part.empty() && part != "." && part != "..";
  }
  if (!inside) {
    throw RunnerError("bundle " + folder + ": path \"" + relative + "\" names nothing inside the folder");
  }
  return folder + "/" + relative;
}

Bundle open_bundle(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  try {
    return {folder, manifest_of(Json::parse(read_text(path)))};
  } catch (const RunnerError& error) {
    throw RunnerError(path + ": " + error.what());
  }
}

std::string file_problem(const Bundle& bundle, const FileEntry& entry) {
  const MappedFile file(bundle.path(entry.path));
  if (file.size() != entry.size_bytes) {
    return std::to_string(file.size()) + " bytes, the manifest says " + std::to_string(entry.size_bytes);
  }
  const std::string digest = sha256(file.data(), file.size());
  return digest == entry.sha256 ? "" : "sha256 " + digest + ", the manifest says " + entry.sha256;
}

std::vector<std::string> file_problems(const Bundle& bundle) {
  std::vector<std::string> problems;
  for (const FileEntry& entry : bundle.manifest.files) {
    std::string problem;
    try {
      problem = file_problem(bundle, entry);
    } catch (const RunnerError& error) {
      problem = error.what();
    }
    if (!problem.empty()) {
      problems.push_back(entry.path + ": " + problem);
    }
  }
  return problems;
}

std::vector<std::string> version_problems(const Bundle& bundle, const std::string& version) {
  const auto here = numbers_of(version);
  std::vector<std::string> problems;
  for (const TargetEntry& target : bundle.manifest.targets) {
    if (target.compiled && numbers_of(target.qnn_version) > here) {
      problems.push_back("target " + target.name + " was compiled with QNN " + target.qnn_version + ", newer than " +
                         version + " here; bring newer QNN libraries or compile with older ones");
    }
  }
  return problems;
}

std::vector<Token> read_keep_set(const Bundle& bundle) {
  const KeepSetEntry& entry = bundle.manifest.keep_set;
  const std::string path = bundle.path(entry.file);
  const Json json = Json::parse(read_text(path));
  std::vector<Token> ids = json.at("token_ids").integers();
  if (json.at("vocab_size").count() != entry.vocab_size || ids.size() != entry.size ||
      keep_set_hash(entry.vocab_size, ids) != entry.sha256) {
    throw RunnerError(path + " is not the keep set that this bundle's graphs were made for; copy the bundle again");
  }
  return ids;
}

HeadConfig head_config(const Bundle& bundle) {
  require_kind(bundle, "mtp");
  const Json& config = bundle.manifest.config;
  return {config.at("backbone_hidden_size").count(), config.at("sliding_window").count(), bundle.manifest.window,
          bundle.manifest.position_rule == "p-1", kind_shapes(config)};
}

SlmConfig slm_config(const Bundle& bundle) {
  require_kind(bundle, "slm");
  const Json& config = bundle.manifest.config;
  SlmConfig result;
  result.hidden = config.at("hidden_size").count();
  result.sliding_window = config.at("sliding_window").count();
  result.window = bundle.manifest.window;
  if (config.has("final_logit_softcapping")) {
    result.softcap = config.at("final_logit_softcapping").number();
  }
  result.kinds = kind_shapes(config);
  const Json::Array& layers = config.at("layers").items();
  for (std::size_t index = 0; index < layers.size(); ++index) {
    if (layers[index].at("owner").count() == index) {
      result.owners.push_back({index, kind_of(layers[index].at("kind").text()),
                               layers[index].at("num_key_value_heads").count(), layers[index].at("head_dim").count()});
    }
  }
  return result;
}

}  // namespace hyco
