// The likeliest tokens of a row of logits: hyco_npu/decode/scores.py over uint16 codes in chunks of columns.
//
// Codes are compared, not values: a chunk's value rises with its code. The log-sum-exp over all columns is a sum of
// table entries, one table of 65,536 exponentials for each different scale and zero point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "affine.h"
#include "tree.h"

namespace hyco {

// Scale of a source: log_softmax(logits / temperature) + bias, at most 0.
struct SourceScore {
  double temperature = 1.0;
  double bias = 0.0;
};

struct LogitsChunk {
  std::size_t columns = 0;
  Affine affine;
};

// A row of logits: one pointer to the codes of each chunk.
using CodeRow = std::vector<const std::uint16_t*>;

class CandidateScorer {
 public:
  // `token_ids` maps columns to the verifier's vocabulary; `softcap` c turns a logit x into c * tanh(x / c). Throws
  // UsageError for a temperature not above 0 and RunnerError for chunks that do not make up the token ids.
  CandidateScorer(std::vector<LogitsChunk> chunks, std::vector<Token> token_ids, std::optional<double> softcap,
                  SourceScore score);

  // The `count` likeliest tokens, best first; ties go to the lower column.
  std::vector<Candidate> best(const CodeRow& row, std::size_t count) const;

  // Token of the largest raw logit; ties go to the lower column.
  Token likeliest(const CodeRow& row) const;

 private:
  struct Table {
    Affine affine;
    double top = 0.0;
    std::vector<float> exponentials;  // exp(value(code) - top)
  };
  struct Found {
    std::size_t column;
    float value;
  };
  // The largest code of every block of each chunk.
  using Maxima = std::vector<std::vector<std::uint16_t>>;

  float value(const Affine& affine, std::uint16_t code) const;
  std::size_t table_for(const Affine& affine);
  std::vector<Found> top_columns(const CodeRow& row, std::size_t count) const;
  float bound(const Maxima& maxima, std::size_t count) const;
  double log_sum(const CodeRow& row, float top) const;
  std::uint16_t lowest_code(const Affine& affine, float bound) const;

  std::vector<LogitsChunk> chunks_;
  std::vector<std::size_t> table_of_chunk_;
  std::vector<Table> tables_;
  std::vector<Token> token_ids_;
  std::optional<float> softcap_;
  SourceScore score_;
};

}  // namespace hyco
