// The decoder stack: a forest's rows through all layers, in one parallel region.
//
// Every step of a layer (norm, query-key-value, rotary, attention, ...) is shared out among the pool's workers and ends in a
// barrier. Rows go through in passes of at most kPassRows consecutive ones, which bounds the buffers and keeps activations
// in the processor's cache; keys and values of earlier rows are in place by then, so a pass changes no number.
#pragma once

#include <cstdint>
#include <vector>

#include "buffer.h"
#include "cache.h"
#include "forest.h"
#include "kernels/kernels.h"
#include "layer.h"
#include "pool.h"
#include "profile.h"
#include "result.h"

namespace headstart {

constexpr std::int64_t kPassRows = 256;

// Rows of one tree times query heads of one key-value head: what one worker attends at a time.
struct AttentionShare {
  std::int32_t tree;
  std::int32_t row;  // of the pass
  std::int32_t num_rows;
  std::int32_t kv_head;
  std::int32_t first_head;  // within those of the key-value head
  std::int32_t num_heads;
};

// Buffers for the rows of one pass, by row.
struct PassBuffers {
  explicit PassBuffers(std::int64_t rows) : capacity(rows) {}
  std::int64_t capacity;
  Buffer residual, qkv, queries, attended, prepared, cosines, sines;
};

class Stack {
 public:
  // Both must outlive the stack.
  Stack(const ModelSettings& settings, const ModelWeights& weights);

  // Computes a forest: keys and values go into the trees' caches (one a tree, with room for them), the rest into the result,
  // with the residual streams before the watched layers.
  void run(const Forest& forest, const std::vector<SlotCache*>& caches, const std::vector<std::int64_t>& watched, Result& result,
           Profile& profile);

 private:
  struct Pass;
  class Run;

  void reserve(std::int64_t num_rows);

  const ModelSettings& settings_;
  const ModelWeights& weights_;
  const Kernels& kernels_;
  PassBuffers buffers_{0};
  std::vector<Buffer> worker_buffers_;  // one a worker, that each reserves for itself
};

}  // namespace headstart
