// A text as events: what a recording, a benchmark's rounds and a client of `serve` say, and what is answered.
//
// "begin": token_ids, emitted, update. "draft": max_depth. "commit": accepted, emitted, update. An update's tensors are
// update.N.hidden, .embedding [backbone], .keys_KIND and .values_KIND [heads, rows, head_dim], all float32: the
// verifier's state for the head.
#pragma once

#include <string>
#include <vector>

#include "feeds.h"
#include "json.h"
#include "models.h"
#include "safetensors.h"
#include "timing.h"
#include "tree.h"

namespace hyco {

// Throws RunnerError unless `json` is of schema 1; `name` is what it came from.
void require_schema(const Json& json, const std::string& name);

// The tensors of update `number`. Throws RunnerError where one is absent or not of the head's shape.
HeadUpdate update_of(const SafetensorsFile& file, std::size_t number, const HeadConfig& config);

Json tree_json(const DraftTree& tree);

// Rows of the tree whose tokens are `tokens`, from the root's child down, as far as the tree holds them.
std::vector<std::size_t> walk(const DraftTree& tree, const std::vector<Token>& tokens);

}  // namespace hyco
