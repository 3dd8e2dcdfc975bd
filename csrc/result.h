// What a forward leaves: logits and hidden states of its scored rows.
//
// Their memory (megabytes of logits a step) goes back to a shelf when the result dies and serves the next one, which spares the
// system from handing out and clearing the same pages each step.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "buffer.h"

namespace headstart {

class Shelf {
 public:
  Buffer take(std::size_t bytes);
  void give(Buffer buffer);

 private:
  std::mutex lock_;
  std::vector<Buffer> buffers_;
};

class Result {
 public:
  // Logits [num_rows, logits_stride], of which the first vocab_size of each row count, and hidden states [num_rows, hidden_size];
  // of all rows, scored or not, what was watched: [all_rows, state_size].
  Result(std::shared_ptr<Shelf> shelf, std::int64_t num_rows, std::int64_t vocab_size, std::int64_t logits_stride,
         std::int64_t hidden_size, std::int64_t all_rows, std::int64_t state_size);
  ~Result();
  Result(const Result&) = delete;
  Result& operator=(const Result&) = delete;

  float* logits() const { return memory_.as<float>(); }
  float* hidden() const { return memory_.as<float>() + hidden_offset_; }
  float* states() const { return memory_.as<float>() + states_offset_; }

  const std::int64_t num_rows, vocab_size, logits_stride, hidden_size, all_rows, state_size;

 private:
  std::shared_ptr<Shelf> shelf_;
  std::int64_t hidden_offset_, states_offset_;
  Buffer memory_;
};

}  // namespace headstart
