// Hybrid drafters out of two bundles, and their settings out of a decoding configuration.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "json.h"
#include "manifest.h"
#include "round.h"

namespace hyco {

// Opens a graph of a bundle; the bundle outlives it.
using OpenGraph = std::function<std::unique_ptr<Graph>(const Bundle& bundle, const GraphEntry& entry)>;

// Graphs and tables, and drafters over them. Files stay mapped as long as this lives.
class LoadedBundles {
 public:
  // Throws RunnerError for bundles that do not hold what a drafter needs.
  LoadedBundles(const std::string& mtp_folder, const std::string& slm_folder, const OpenGraph& open);

  // A drafter before any text. This must outlive it, and one of them is used at a time: they share the graphs.
  std::unique_ptr<HybridDrafter> drafter(const RoundSettings& settings);
  const HeadConfig& head() const { return head_config_; }

 private:
  Bundle mtp_;
  Bundle slm_;
  HeadConfig head_config_;
  SlmConfig slm_config_;
  EmbeddingTable head_table_;
  SlmTables slm_tables_;
  std::unique_ptr<Graph> head_graph_;
  std::unique_ptr<Graph> draft_graph_;
  std::unique_ptr<Graph> prefill_graph_;
  std::vector<Token> head_tokens_;
  std::vector<Token> slm_tokens_;
};

// The settings of a decoding configuration in JSON, fields as hyco_npu/decode/config.py names them. Throws RunnerError
// for one without the sections that a hybrid drafter needs.
RoundSettings round_settings(const Json& config);

}  // namespace hyco
