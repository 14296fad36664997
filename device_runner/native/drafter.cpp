#include "drafter.h"

#include <utility>

namespace hyco {

namespace {

constexpr const char* kHeadGraph = "mtp_step";

SourceScore score_of(const Json& config, const char* source) {
  if (!config.has("scores") || !config.at("scores").has(source)) {
    return {};
  }
  const Json& score = config.at("scores").at(source);
  return {score.at("temperature").number(), score.at("bias").number()};
}

}  // namespace

LoadedBundles::LoadedBundles(const std::string& mtp_folder, const std::string& slm_folder, const OpenGraph& open)
    : mtp_(open_bundle(mtp_folder)),
      slm_(open_bundle(slm_folder)),
      head_config_(head_config(mtp_)),
      slm_config_(slm_config(slm_)),
      head_table_(mtp_.path(mtp_.manifest.table)),
      slm_tables_{PackedTable(slm_.path(slm_.manifest.table)), PackedTable(slm_.path(slm_.manifest.per_layer_table))},
      head_graph_(open(mtp_, mtp_.manifest.graph(kHeadGraph))),
      draft_graph_(open(slm_, slm_.manifest.graph(slm_.manifest.draft_graph))),
      prefill_graph_(open(slm_, slm_.manifest.graph(slm_.manifest.prefill_graph))),
      head_tokens_(read_keep_set(mtp_)),
      slm_tokens_(read_keep_set(slm_)) {}

std::unique_ptr<HybridDrafter> LoadedBundles::drafter(const RoundSettings& settings) {
  const std::size_t draft_rows = slm_.manifest.graph(slm_.manifest.draft_graph).rows;
  const std::size_t prefill_rows = slm_.manifest.graph(slm_.manifest.prefill_graph).rows;
  HeadDrafter head(head_config_, *head_graph_, head_table_, head_tokens_, settings);
  SlmRows rows({slm_config_, slm_tables_, *draft_graph_, draft_rows, *prefill_graph_, prefill_rows}, slm_tokens_,
               settings);
  return std::make_unique<HybridDrafter>(std::move(head), std::move(rows), settings);
}

RoundSettings round_settings(const Json& config) {
  RoundSettings settings;
  settings.nodes = config.at("tree").at("nodes").count();
  settings.keep_chain = config.at("tree").at("keep_chain").boolean();
  const Json& mtp = config.at("mtp");
  settings.steps = mtp.at("steps").count();
  settings.width = mtp.at("width").count();
  settings.sibling_depth = mtp.at("sibling_depth").count();
  const Json& slm = config.at("slm");
  settings.passes = slm.at("passes").count();
  settings.children = slm.at("children").count();
  settings.beam = slm.at("beam").count();
  settings.head_score = score_of(config, "mtp");
  settings.slm_score = score_of(config, "slm");
  if (config.has("guesses")) {
    const Json& guesses = config.at("guesses");
    settings.guesses = GuessSettings{guesses.at("runners_up").count(), guesses.at("longest").count(),
                                     guesses.at("shortest").count()};
  }
  return settings;
}

}  // namespace hyco
