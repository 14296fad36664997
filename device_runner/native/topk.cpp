#include "topk.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "clones.h"
#include "errors.h"

namespace hyco {

namespace {

constexpr std::size_t kCodes = 65536;
constexpr std::size_t kBlock = 64;
// Terms that a float accumulates before a double takes over: keeps the relative error of a sum near 1e-6.
constexpr std::size_t kFloatTerms = 512;
constexpr std::size_t kLanes = 8;
// A row whose largest logit lies so far below its table's top would lose precision in float; it is summed one by one.
constexpr double kTableReach = 60.0;

HYCO_AVX2_TOO std::uint16_t largest(const std::uint16_t* codes, std::size_t count) {
  std::uint16_t result = 0;
  for (std::size_t i = 0; i < count; ++i) {
    result = std::max(result, codes[i]);
  }
  return result;
}

// The largest code of every block; the last may be short.
HYCO_AVX2_TOO void block_maxima(const std::uint16_t* codes, std::size_t count, std::uint16_t* maxima) {
  const std::size_t whole = count / kBlock;
  for (std::size_t block = 0; block < whole; ++block) {
    std::uint16_t result = 0;
    for (std::size_t i = 0; i < kBlock; ++i) {
      result = std::max(result, codes[block * kBlock + i]);
    }
    maxima[block] = result;
  }
  if (whole * kBlock < count) {
    maxima[whole] = largest(codes + whole * kBlock, count - whole * kBlock);
  }
}

double table_sum(const std::uint16_t* codes, std::size_t count, const float* table) {
  double total = 0.0;
  std::size_t at = 0;
  while (at + kLanes <= count) {
    const std::size_t stop = std::min(count - (kLanes - 1), at + kFloatTerms);
    // eight sums, because an addition waits for the one before it; four codes a load, because loads are the limit then
    std::array<float, kLanes> sums{};
    for (; at < stop; at += kLanes) {
      std::array<std::uint64_t, 2> fours;
      std::memcpy(fours.data(), codes + at, sizeof(fours));
      sums[0] += table[fours[0] & 0xFFFF];
      sums[1] += table[(fours[0] >> 16) & 0xFFFF];
      sums[2] += table[(fours[0] >> 32) & 0xFFFF];
      sums[3] += table[fours[0] >> 48];
      sums[4] += table[fours[1] & 0xFFFF];
      sums[5] += table[(fours[1] >> 16) & 0xFFFF];
      sums[6] += table[(fours[1] >> 32) & 0xFFFF];
      sums[7] += table[fours[1] >> 48];
    }
    total = std::accumulate(sums.begin(), sums.end(), total);
  }
  for (; at < count; ++at) {
    total += table[codes[at]];
  }
  return total;
}

}  // namespace

CandidateScorer::CandidateScorer(std::vector<LogitsChunk> chunks, std::vector<Token> token_ids,
                                 std::optional<double> softcap, SourceScore score)
    : chunks_(std::move(chunks)), token_ids_(std::move(token_ids)), score_(score) {
  if (!(score_.temperature > 0) || !std::isfinite(score_.temperature) || !std::isfinite(score_.bias)) {
    throw UsageError("a source's scores need a temperature above 0 and a finite bias, got temperature " +
                     std::to_string(score_.temperature) + ", bias " + std::to_string(score_.bias));
  }
  if (softcap) {
    softcap_ = static_cast<float>(*softcap);
  }
  std::size_t columns = 0;
  for (const LogitsChunk& chunk : chunks_) {
    columns += chunk.columns;
    table_of_chunk_.push_back(table_for(chunk.affine));
  }
  if (columns != token_ids_.size() || columns == 0) {
    throw RunnerError("the graph's logits have " + std::to_string(columns) + " columns, the keep set " +
                      std::to_string(token_ids_.size()) + " tokens; graph and keep set are of different exports");
  }
}

std::vector<Candidate> CandidateScorer::best(const CodeRow& row, std::size_t count) const {
  const std::vector<Found> found = top_columns(row, std::min(count, token_ids_.size()));
  const float top = found.front().value;
  const auto log_sum = static_cast<float>(this->log_sum(row, top));
  const auto bias = static_cast<float>(score_.bias);
  std::vector<Candidate> candidates;
  candidates.reserve(found.size());
  for (const Found& one : found) {
    // float32 step by step, as the reference rounds
    const float log_probability = ((one.value - top) - log_sum) + bias;
    candidates.push_back({token_ids_[one.column], std::min(0.0, static_cast<double>(log_probability))});
  }
  return candidates;
}

Token CandidateScorer::likeliest(const CodeRow& row) const {
  std::size_t best_column = 0;
  std::size_t start = 0;
  float best = -INFINITY;
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const std::uint16_t* codes = row[chunk];
    const std::size_t columns = chunks_[chunk].columns;
    const std::uint16_t code = largest(codes, columns);
    const float value = chunks_[chunk].affine.decode(code);
    if (value > best) {
      best = value;
      best_column = start + static_cast<std::size_t>(std::find(codes, codes + columns, code) - codes);
    }
    start += columns;
  }
  return token_ids_[best_column];
}

float CandidateScorer::value(const Affine& affine, std::uint16_t code) const {
  float logit = affine.decode(code);
  if (softcap_) {
    logit = std::tanh(logit / *softcap_) * *softcap_;
  }
  return logit / static_cast<float>(score_.temperature);
}

std::size_t CandidateScorer::table_for(const Affine& affine) {
  for (std::size_t index = 0; index < tables_.size(); ++index) {
    if (tables_[index].affine.scale == affine.scale && tables_[index].affine.zero_point == affine.zero_point) {
      return index;
    }
  }
  Table table{affine, value(affine, kCodes - 1), std::vector<float>(kCodes)};
  for (std::size_t code = 0; code < kCodes; ++code) {
    const auto exponential =
        static_cast<float>(std::exp(value(affine, static_cast<std::uint16_t>(code)) - table.top));
    // a subnormal addend makes the sum slow and changes nothing
    table.exponentials[code] = std::isnormal(exponential) ? exponential : 0.0F;
  }
  tables_.push_back(std::move(table));
  return tables_.size() - 1;
}

std::vector<CandidateScorer::Found> CandidateScorer::top_columns(const CodeRow& row, std::size_t count) const {
  Maxima maxima(chunks_.size());
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const std::size_t columns = chunks_[chunk].columns;
    maxima[chunk].resize((columns + kBlock - 1) / kBlock);
    block_maxima(row[chunk], columns, maxima[chunk].data());
  }
  const float bound = this->bound(maxima, count);
  std::vector<std::optional<std::uint16_t>> lowest(tables_.size());
  std::vector<Found> found;
  std::size_t start = 0;
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const std::size_t columns = chunks_[chunk].columns;
    const Affine& affine = chunks_[chunk].affine;
    if (value(affine, kCodes - 1) >= bound) {
      std::optional<std::uint16_t>& least = lowest[table_of_chunk_[chunk]];
      least = least ? least : lowest_code(affine, bound);
      for (std::size_t block = 0; block < maxima[chunk].size(); ++block) {
        if (maxima[chunk][block] < *least) {
          continue;
        }
        const std::size_t stop = std::min(columns, (block + 1) * kBlock);
        for (std::size_t column = block * kBlock; column < stop; ++column) {
          if (row[chunk][column] >= *least) {
            found.push_back({start + column, value(affine, row[chunk][column])});
          }
        }
      }
    }
    start += columns;
  }
  std::sort(found.begin(), found.end(), [](const Found& left, const Found& right) {
    return left.value != right.value ? left.value > right.value : left.column < right.column;
  });
  found.resize(std::min(count, found.size()));
  return found;
}

float CandidateScorer::bound(const Maxima& maxima, std::size_t count) const {
  // The count-th largest of the blocks' maxima bounds the candidates from below, so few blocks are looked into.
  std::vector<float> values;
  std::vector<std::uint16_t> best;  // of a chunk, falling
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    best.clear();
    for (const std::uint16_t code : maxima[chunk]) {
      if (best.size() < count || code > best.back()) {
        best.insert(std::upper_bound(best.begin(), best.end(), code, std::greater<>()), code);
        best.resize(std::min(best.size(), count));
      }
    }
    for (const std::uint16_t code : best) {
      values.push_back(value(chunks_[chunk].affine, code));
    }
  }
  if (values.size() < count) {
    return -INFINITY;
  }
  const auto last = values.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(values.begin(), last, values.end(), std::greater<>());
  return *last;
}

std::uint16_t CandidateScorer::lowest_code(const Affine& affine, float bound) const {
  // Different codes may have one value where tanh saturates: such columns tie, so the bound is on values.
  std::size_t low = 0;
  std::size_t high = kCodes - 1;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (value(affine, static_cast<std::uint16_t>(middle)) >= bound) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<std::uint16_t>(low);
}

double CandidateScorer::log_sum(const CodeRow& row, float top) const {
  double sum = 0.0;
  for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const Table& table = tables_[table_of_chunk_[chunk]];
    const std::size_t columns = chunks_[chunk].columns;
    if (table.top - top <= kTableReach) {
      sum += table_sum(row[chunk], columns, table.exponentials.data()) * std::exp(table.top - top);
      continue;
    }
    for (std::size_t column = 0; column < columns; ++column) {
      sum += std::exp(static_cast<double>(value(table.affine, row[chunk][column])) - top);
    }
  }
  return std::log(sum);
}

}  // namespace hyco
