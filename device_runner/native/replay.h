// A recorded text, drafted again: the graphs' outputs come from a file, and so do the replies.
//
// The file is a safetensors file. Its metadata "recording" is JSON with `schema_version` 1, the decoding `config`,
// `events` in order (events.h) and `calls`, the graphs' names in the order in which they ran. Tensors: those of the
// events; `call.N.out.NAME` is what call N gave; where there is a `call.N.in.NAME`, what it is given now must be the same.
#pragma once

#include <string>

namespace hyco {

// Prints one line of JSON for every draft: its tree and the time of its parts. Throws RunnerError where the drafter
// runs other graphs, or gives them other codes, than the recording says.
void replay(const std::string& mtp_folder, const std::string& slm_folder, const std::string& recording);

}  // namespace hyco
