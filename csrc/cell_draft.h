// Whole drafts of sequential heads: src/headstart/proposers/growth.py says how a tree grows level by level, this does the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cell.h"
#include "coupling.h"

namespace headstart {

// One sequence that wants a draft.
struct DraftRequest {
  std::int64_t root;  // its last token
  std::int64_t max_nodes, num_levels;
  double least_reach;                     // of the nodes of a level together, to be worth a further pass
  std::vector<double> factors;            // [num_levels] or more: what to scale estimates of a depth by
  std::optional<Coupling> coupling = {};  // nothing: the likeliest children
};

// What all sequences have in common.
struct DraftSettings {
  std::int64_t num_ranks;       // children a node, at most
  std::int64_t num_candidates;  // of each node, that a coupling's noise may rank
  double least_node_reach;      // nodes of less are not expanded
  double certain;               // the most that a scaled estimate may say
};

// Parents first, the root before them.
struct LevelTree {
  std::vector<std::int64_t> tokens, parents;
  std::vector<double> probabilities;
};

struct Drafts {
  std::vector<LevelTree> trees;
  std::int64_t num_passes = 0;
  bool usable = true;  // whether all states were finite numbers
};

// Trees of the likeliest or of coupled guesses: hidden [n, D] stands before the roots; `base_ids` [V'] are the tokens of the output
// rows, or nothing where these are the tokens. std::invalid_argument or std::out_of_range for what does not fit.
Drafts draft(const Cell& cell, std::span<const float> hidden, std::span<const DraftRequest> requests, const DraftSettings& settings,
             std::span<const std::int64_t> base_ids);

}  // namespace headstart
