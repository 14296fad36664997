#include "events.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace hyco {

void require_schema(const Json& json, const std::string& name) {
  if (json.at("schema_version").integer() != 1) {
    throw RunnerError(name + " is not of schema 1, but of " + std::to_string(json.at("schema_version").integer()) +
                      "; record it again with this version of hyco-npu");
  }
}

HeadUpdate update_of(const SafetensorsFile& file, std::size_t number, const HeadConfig& config) {
  const std::string prefix = "update." + std::to_string(number) + ".";
  HeadUpdate update;
  update.hidden = elements<float>(file.tensor(prefix + "hidden", "F32", 1));
  update.embedding = elements<float>(file.tensor(prefix + "embedding", "F32", 1));
  for (std::size_t kind = 0; kind < kKindNames.size(); ++kind) {
    if (!config.kinds[kind]) {
      continue;
    }
    const TensorView& keys = file.tensor(prefix + "keys_" + kKindNames[kind], "F32", 3);
    const TensorView& values = file.tensor(prefix + "values_" + kKindNames[kind], "F32", 3);
    const std::vector<std::size_t> shape = {config.kinds[kind]->heads, keys.shape[1], config.kinds[kind]->dim};
    if (keys.shape != shape || values.shape != shape) {
      throw RunnerError(file.path() + ": " + prefix + "keys_" + kKindNames[kind] + " and values_" + kKindNames[kind] +
                        " are not both [" + std::to_string(shape[0]) + ", rows, " + std::to_string(shape[2]) +
                        "]; they are of another head");
    }
    update.rows = shape[1];
    update.keys[kind] = elements<float>(keys);
    update.values[kind] = elements<float>(values);
  }
  return update;
}

Json tree_json(const DraftTree& tree) {
  Json::Array parents;
  for (const auto& parent : tree.parents) {
    parents.push_back(parent ? Json(*parent) : Json());
  }
  return Json::Object{{"token_ids", Json::array(tree.tokens)},
                      {"parents", std::move(parents)},
                      {"scores", Json::array(tree.scores)},
                      {"sources", Json::array(tree.sources)}};
}

std::vector<std::size_t> walk(const DraftTree& tree, const std::vector<Token>& tokens) {
  std::vector<std::size_t> path;
  for (const Token token : tokens) {
    const std::size_t parent = path.empty() ? 0 : path.back();
    std::size_t row = parent + 1;
    while (row < tree.tokens.size() && (tree.tokens[row] != token || tree.parents[row] != parent)) {
      ++row;
    }
    if (row == tree.tokens.size()) {
      break;
    }
    path.push_back(row);
  }
  return path;
}

}  // namespace hyco
