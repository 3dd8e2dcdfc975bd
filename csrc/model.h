// A decoder of the Llama family on the CPU: slots, forwards over forests of rows, and what is kept of them.
//
// Covers Llama (any scaling of the rotary frequencies: they are given), Mistral (sliding windows), Qwen2 (biases), Qwen3 (norms
// of queries and keys) and SmolLM3 (layers without rotary positions), with tied and untied output. Each output element has one
// fixed order of summation that no neighbour row, batch, tree, chunking or thread count changes, so the same position gives the
// same bits however it is computed (within one instruction set).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cache.h"
#include "forest.h"
#include "fork.h"
#include "layer.h"
#include "profile.h"
#include "result.h"
#include "stack.h"

namespace headstart {

// Every method may be called from several threads; they take turns, and a fork waits for its own. Misuse throws std::invalid_argument and changes nothing.
class Model {
 public:
  Model(ModelSettings settings, ModelWeights weights);

  std::int64_t open();
  void close(std::int64_t slot);
  // A new slot with the same committed rows.
  std::int64_t fork(std::int64_t slot);
  std::int64_t length(std::int64_t slot);

  // Computes all rows; keep follows for each slot before its next forward.
  std::shared_ptr<Result> forward(const Batch& batch);
  // Commits these rows of the slot's last forward, a path from row 0 on; forgets its others.
  void keep(std::int64_t slot, std::span<const std::int64_t> path);

  // From now on results hold the residual streams before these layers, 0 to num_layers (behind the last one).
  void watch(std::span<const std::int64_t> layers);

  // Bytes that all open slots hold.
  std::size_t cache_bytes();

  void enable_profile(bool on);
  std::array<double, kNumParts> profile();

 private:
  struct Slot {
    Slot(const CacheShape& shape, ChunkShelf& shelf) : cache(shape, shelf) {}
    SlotCache cache;
    std::int64_t length = 0;
    std::int64_t chain = 0;             // rows of the last forward that went straight into the cache
    std::vector<std::int32_t> pending;  // parents of its rows, until keep
  };

  Slot& find(std::int64_t slot);
  CacheShape shape() const;

  ForkMutex lock_;
  const ModelSettings settings_;
  const ModelWeights weights_;
  Stack stack_;
  std::vector<std::int64_t> watched_;
  Profile profile_;
  std::shared_ptr<Shelf> shelf_ = std::make_shared<Shelf>();
  ChunkShelf chunks_;
  std::map<std::int64_t, std::unique_ptr<Slot>> slots_;
  std::int64_t next_slot_ = 0;
};

}  // namespace headstart
