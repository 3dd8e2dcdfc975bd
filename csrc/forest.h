// The rows of one forward: trees of tokens, one a slot.
//
// Row r of a tree stands at position length + depth(r) and sees the slot's committed rows, its own ancestors and itself. The
// longest run of rows 0, 1, 2, .. of which each hangs under the one before (a whole prompt, a plain step, the first branch of a
// draft) goes straight into the cache; every other row gets a place in the slot's draft area (cache.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/stack_kernels.h"

namespace headstart {

// Arrays as they come from Python; nothing about them is known yet. R rows of n trees.
struct Batch {
  std::span<const std::int64_t> slots;         // [n]
  std::span<const std::int64_t> row_starts;    // [n + 1]
  std::span<const std::int32_t> tokens;        // [R]
  std::span<const std::int32_t> parents;       // [R], within the tree; -1: root
  std::span<const std::int64_t> first_scored;  // [n]
  std::span<const float> hidden;               // [R, hidden_size] for a drafting layer, else empty; read during the forward
};

struct Tree {
  std::int64_t slot;
  std::int64_t length;  // committed rows of the slot
  std::int64_t begin;   // its rows in the forest
  std::int64_t end;
  std::int64_t chain;  // rows that go straight into the cache
  std::int64_t depth;  // of the deepest row
  std::int64_t first_scored;
  std::vector<std::int32_t> parents;

  std::int64_t num_rows() const { return end - begin; }
  std::int64_t num_drafted() const { return num_rows() - chain; }
};

struct ForestRow {
  std::int32_t tree;
  std::int32_t token;
  std::int32_t position;
};

struct ForestLimits {
  std::int64_t vocab_size;  // of the embedding
  std::int64_t context;
  std::int64_t hidden_size;  // of the states that rows must bring along; 0: none
};

struct Forest {
  std::vector<Tree> trees;
  std::vector<ForestRow> rows;
  std::span<const float> hidden;  // as given
  std::int64_t num_scored = 0;

  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows.size()); }
  bool scored(std::int64_t row) const;
  // Rows of the draft area that the row sees, itself the last, by ascending depth; none for rows that go into the cache.
  void drafted_ancestors(std::int64_t row, std::vector<std::int32_t>& found) const;
  // Positions of the cache that the row sees.
  std::int64_t num_cached(std::int64_t row, std::int64_t num_drafted_ancestors) const;
};

// Checks everything (std::invalid_argument); `length_of` gives a slot's committed rows or refuses it.
Forest plant(const Batch& batch, const ForestLimits& limits, const std::function<std::int64_t(std::int64_t slot)>& length_of);

// A path from row 0 on that follows parents, or empty; std::invalid_argument otherwise.
void check_path(std::span<const std::int64_t> path, std::span<const std::int32_t> parents);

}  // namespace headstart
