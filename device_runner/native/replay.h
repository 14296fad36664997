// A recorded text, drafted again: the graphs' outputs come from a file, and so do the replies.
//
// The file is a safetensors file. Its metadata "recording" is JSON with `schema_version` 1, the decoding `config`,
// `events` in order ("begin": token_ids, emitted, update; "draft": max_depth; "commit": accepted, emitted, update) and
// `calls`, the graphs' names in the order in which they ran. Tensors: `call.N.out.NAME` is what call N gave; where there
// is a `call.N.in.NAME`, what it is given now must be the same; `update.N.hidden`, `.embedding`, `.keys_KIND` and
// `.values_KIND` [heads, rows, head_dim], all float32, are a reply's state for the head.
#pragma once

#include <string>

namespace hyco {

// Prints one line of JSON for every draft: its tree and the time of each phase. Throws RunnerError where the drafter
// runs other graphs, or gives them other codes, than the recording says.
void replay(const std::string& mtp_folder, const std::string& slm_folder, const std::string& recording);

}  // namespace hyco
