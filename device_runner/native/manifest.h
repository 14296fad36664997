// A bundle's manifest.json as a runner reads it: export/bundle/manifest.py, schema versions 1 and 2.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "affine.h"
#include "json.h"
#include "models.h"
#include "tree.h"

namespace hyco {

struct FileEntry {
  std::string path;
  std::size_t size_bytes = 0;
  std::string sha256;
};

struct GraphEntry {
  std::string name;
  std::size_t rows = 0;
  std::map<std::string, std::string> files;  // by role: "qdq", "weights", "context", "binary", ...
  Boundary boundary;
};

struct TargetEntry {
  std::string name;
  bool compiled = false;
  std::string qnn_version;  // "" where it was not compiled
  std::size_t soc_model = 0;
  std::size_t htp_arch = 0;  // 81 for "v81"
};

struct KeepSetEntry {
  std::string file;
  std::size_t size = 0;
  std::string sha256;
  std::size_t vocab_size = 0;
};

struct Manifest {
  std::int64_t schema_version = 0;
  std::string kind;  // "mtp" or "slm"
  std::size_t window = 0;
  std::string position_rule;
  KeepSetEntry keep_set;
  std::vector<GraphEntry> graphs;
  std::string table;            // "" where there is none
  std::string per_layer_table;  // "" where there is none
  std::string draft_graph;      // of an SLM
  std::string prefill_graph;    // of an SLM
  std::vector<TargetEntry> targets;
  std::vector<FileEntry> files;
  Json config;  // the model's dimensions

  // Throws RunnerError naming those that exist.
  const GraphEntry& graph(const std::string& name) const;
};

struct Bundle {
  std::string folder;
  Manifest manifest;

  // Path of a file that the manifest names. Throws RunnerError for one that leaves the folder, and for "".
  std::string path(const std::string& relative) const;
};

// Throws RunnerError for a folder without manifest, one that is not valid, and a schema version that is not known.
Bundle open_bundle(const std::string& folder);

// One line for each file that is not as the manifest says (missing, size, SHA-256); empty for an intact bundle.
std::vector<std::string> file_problems(const Bundle& bundle);

// "" for a file that is as the manifest says, otherwise what is wrong with it. Throws RunnerError for one that cannot be
// opened.
std::string file_problem(const Bundle& bundle, const FileEntry& entry);

// One line for each target that was compiled with a newer QNN than `version`, which could not load its binary. Throws
// UsageError for a version that is no such text as "2.51.0" or "v2.51.0.260929181845".
std::vector<std::string> version_problems(const Bundle& bundle, const std::string& version);

// Token ids by column. Throws RunnerError for a set that is not the one that the graphs were made for.
std::vector<Token> read_keep_set(const Bundle& bundle);

// Dimensions of either drafter. Throw RunnerError for a bundle of the other kind.
HeadConfig head_config(const Bundle& bundle);
SlmConfig slm_config(const Bundle& bundle);

}  // namespace hyco
