#include "forest.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_set>

namespace headstart {

namespace {

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void check_sizes(const Batch& batch) {
  const std::size_t num_trees = batch.slots.size();
  require(num_trees > 0, "a forward needs at least one slot");
  require(batch.row_starts.size() == num_trees + 1 && batch.first_scored.size() == num_trees,
          "row_starts needs one entry more than slots, first_scored as many");
  require(batch.tokens.size() == batch.parents.size(), "tokens and parents need one entry a row each");
  require(batch.tokens.size() <= std::numeric_limits<std::int32_t>::max(), "too many rows");
  require(batch.row_starts.front() == 0 && batch.row_starts.back() == static_cast<std::int64_t>(batch.tokens.size()),
          "row_starts must begin with 0 and end with the number of rows");
  for (std::size_t i = 0; i < num_trees; ++i)
    require(batch.row_starts[i] < batch.row_starts[i + 1], "row_starts must ascend: every tree has at least its root");
  const std::unordered_set<std::int64_t> different(batch.slots.begin(), batch.slots.end());
  require(different.size() == num_trees, "each slot may stand once in a batch");
}

void check_hidden(const Batch& batch, const ForestLimits& limits) {
  const std::size_t needed = batch.tokens.size() * static_cast<std::size_t>(limits.hidden_size);
  require(batch.hidden.size() == needed, "hidden has " + std::to_string(batch.hidden.size()) + " values; these rows need " +
                                             std::to_string(needed));
}

void check_rows(const Batch& batch, const Tree& tree, const ForestLimits& limits) {
  for (std::int64_t row = tree.begin; row < tree.end; ++row) {
    const std::int64_t token = batch.tokens[static_cast<std::size_t>(row)], parent = batch.parents[static_cast<std::size_t>(row)];
    require(token >= 0 && token < limits.vocab_size,
            "token " + std::to_string(token) + " is not one of the vocabulary's " + std::to_string(limits.vocab_size));
    require(row == tree.begin ? parent == -1 : parent >= 0 && parent < row - tree.begin,
            "row " + std::to_string(row - tree.begin) + " of a tree has parent " + std::to_string(parent) +
                "; the root's is -1 and every other parent stands before its child");
  }
}

std::int64_t chain_length(std::span<const std::int32_t> parents) {
  std::int64_t chain = 1;
  while (chain < static_cast<std::int64_t>(parents.size()) && parents[static_cast<std::size_t>(chain)] == chain - 1) ++chain;
  return chain;
}

Tree make_tree(const Batch& batch, std::size_t index, const ForestLimits& limits, std::int64_t length) {
  Tree tree{batch.slots[index], length, batch.row_starts[index], batch.row_starts[index + 1], 0, 0, batch.first_scored[index], {}};
  check_rows(batch, tree, limits);
  require(tree.first_scored >= 0 && tree.first_scored <= tree.num_rows(),
          "first_scored is " + std::to_string(tree.first_scored) + "; the tree has " + std::to_string(tree.num_rows()) + " rows");
  const auto parents = batch.parents.subspan(static_cast<std::size_t>(tree.begin), static_cast<std::size_t>(tree.num_rows()));
  tree.parents.assign(parents.begin(), parents.end());
  tree.chain = chain_length(tree.parents);
  return tree;
}

}  // namespace

Forest plant(const Batch& batch, const ForestLimits& limits, const std::function<std::int64_t(std::int64_t)>& length_of) {
  check_sizes(batch);
  check_hidden(batch, limits);
  Forest forest;
  forest.hidden = batch.hidden;
  forest.rows.resize(batch.tokens.size());
  for (std::size_t i = 0; i < batch.slots.size(); ++i) {
    Tree tree = make_tree(batch, i, limits, length_of(batch.slots[i]));
    for (std::int64_t row = tree.begin; row < tree.end; ++row) {
      const std::int32_t parent = tree.parents[static_cast<std::size_t>(row - tree.begin)];
      const std::int64_t position =
          parent < 0 ? tree.length : std::int64_t{forest.rows[static_cast<std::size_t>(tree.begin + parent)].position} + 1;
      require(position < limits.context, "slot " + std::to_string(tree.slot) + " would need " + std::to_string(position + 1) +
                                             " positions; the context ends at " + std::to_string(limits.context));
      forest.rows[static_cast<std::size_t>(row)] = {static_cast<std::int32_t>(i), batch.tokens[static_cast<std::size_t>(row)],
                                                    static_cast<std::int32_t>(position)};
      tree.depth = std::max(tree.depth, position - tree.length);
    }
    forest.num_scored += tree.num_rows() - tree.first_scored;
    forest.trees.push_back(std::move(tree));
  }
  return forest;
}

bool Forest::scored(std::int64_t row) const {
  const Tree& tree = trees[static_cast<std::size_t>(rows[static_cast<std::size_t>(row)].tree)];
  return row - tree.begin >= tree.first_scored;
}

void Forest::drafted_ancestors(std::int64_t row, std::vector<std::int32_t>& found) const {
  const Tree& tree = trees[static_cast<std::size_t>(rows[static_cast<std::size_t>(row)].tree)];
  const auto begin = static_cast<std::ptrdiff_t>(found.size());
  for (std::int64_t node = row - tree.begin; node >= tree.chain; node = tree.parents[static_cast<std::size_t>(node)])
    found.push_back(static_cast<std::int32_t>(node - tree.chain));
  std::reverse(found.begin() + begin, found.end());
}

std::int64_t Forest::num_cached(std::int64_t row, std::int64_t num_drafted_ancestors) const {
  return rows[static_cast<std::size_t>(row)].position + 1 - num_drafted_ancestors;
}

void check_path(std::span<const std::int64_t> path, std::span<const std::int32_t> parents) {
  std::int64_t before = -1;
  for (const std::int64_t row : path) {
    require(row >= 0 && row < static_cast<std::int64_t>(parents.size()) && parents[static_cast<std::size_t>(row)] == before,
            "row " + std::to_string(row) + " does not continue a path from the root of the tree that the slot was fed");
    before = row;
  }
}

}  // namespace headstart
