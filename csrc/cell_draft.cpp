#include "cell_draft.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace headstart {

namespace {

constexpr double kTiny = 1e-30;  // a guess is never quite impossible

struct Node {
  std::int64_t token, parent;
  double probability, reach;
  std::int64_t row = -1;  // of the states, where it was expanded
};

// One sequence's tree while it grows.
class Growth {
 public:
  Growth(const DraftRequest& request, const DraftSettings& settings) : request_(request), settings_(settings) {
    nodes_.push_back({request.root, -1, 1.0, 1.0});
    frontier_.push_back(0);
  }

  Node& node(std::int64_t index) { return nodes_[static_cast<std::size_t>(index)]; }
  const std::vector<std::int64_t>& frontier() const { return frontier_; }

  // Children of the frontier's nodes, in its order, as many each; keeps the likeliest paths and expands what is new among them.
  void add(std::span<const std::int64_t> tokens, std::span<const double> estimates, std::int64_t depth) {
    const auto first = static_cast<std::int64_t>(nodes_.size());
    const std::size_t ranks = tokens.size() / frontier_.size();
    const double factor = request_.factors[static_cast<std::size_t>(depth) - 1];
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const std::int64_t parent = frontier_[i / ranks];
      const double probability = std::min(estimates[i] * factor, settings_.certain), reach = node(parent).reach * probability;
      if (reach > border_) nodes_.push_back({tokens[i], parent, probability, reach});
    }
    for (auto i = first; i < static_cast<std::int64_t>(nodes_.size()); ++i) kept_.push_back(i);
    std::stable_sort(kept_.begin(), kept_.end(), [&](std::int64_t a, std::int64_t b) { return node(a).reach > node(b).reach; });
    if (static_cast<std::int64_t>(kept_.size()) >= request_.max_nodes) {
      kept_.resize(static_cast<std::size_t>(request_.max_nodes));
      border_ = node(kept_.back()).reach;
    }
    frontier_.clear();
    if (depth < request_.num_levels) choose_frontier(first);
  }

  LevelTree tree() {
    std::sort(kept_.begin(), kept_.end());
    std::vector<std::int64_t> place(nodes_.size(), 0);
    LevelTree tree{{request_.root}, {-1}, {1.0}};
    for (const std::int64_t index : kept_) {
      place[static_cast<std::size_t>(index)] = static_cast<std::int64_t>(tree.tokens.size());
      tree.tokens.push_back(node(index).token);
      tree.parents.push_back(place[static_cast<std::size_t>(node(index).parent)]);
      tree.probabilities.push_back(node(index).probability);
    }
    return tree;
  }

 private:
  // No child reaches further than its parent, so behind the least likely node of a full draft nothing can be gained.
  void choose_frontier(std::int64_t first) {
    double sum = 0.0;
    std::vector<std::int64_t> worth;
    for (const std::int64_t index : kept_)
      if (index >= first && node(index).reach >= settings_.least_node_reach && node(index).reach > border_) worth.push_back(index);
    std::sort(worth.begin(), worth.end());
    for (const std::int64_t index : worth) sum += node(index).reach;
    if (sum >= request_.least_reach) frontier_ = std::move(worth);
  }

  const DraftRequest& request_;
  const DraftSettings& settings_;
  std::vector<Node> nodes_;
  std::vector<std::int64_t> frontier_;  // nodes that the next pass expands, all of one depth
  std::vector<std::int64_t> kept_;      // the likeliest nodes so far, without the root
  double border_ = 0.0;                 // what a further node must surpass
};

void check(const Cell& cell, std::span<const float> hidden, std::span<const DraftRequest> requests, const DraftSettings& settings,
           std::span<const std::int64_t> base_ids) {
  if (requests.empty()) throw std::invalid_argument("nobody wants a draft");
  if (hidden.size() != requests.size() * static_cast<std::size_t>(cell.width()))
    throw std::invalid_argument("hidden must be one row of " + std::to_string(cell.width()) + " numbers a sequence");
  if (settings.num_ranks < 1) throw std::invalid_argument("num_ranks must be 1 or more");
  if (!base_ids.empty() && static_cast<std::int64_t>(base_ids.size()) != cell.num_outputs())
    throw std::invalid_argument("base_ids must be one token for each of " + std::to_string(cell.num_outputs()) + " output rows");
  for (const DraftRequest& request : requests) {
    if (request.max_nodes < 1 || request.num_levels < 1) throw std::invalid_argument("a draft has one node and one level at least");
    if (request.num_levels > cell.num_depths()) throw std::out_of_range("the cell has fewer levels than are wanted");
    if (static_cast<std::int64_t>(request.factors.size()) < request.num_levels)
      throw std::invalid_argument("factors must be one number a level");
    if (!request.coupling) continue;
    const Coupling& coupling = *request.coupling;
    if (settings.num_candidates < settings.num_ranks) throw std::invalid_argument("num_candidates must be num_ranks or more");
    if (!(coupling.temperature > 0)) throw std::invalid_argument("noise needs a temperature above 0");
    if (static_cast<std::int64_t>(coupling.keys.size()) < request.num_levels) throw std::invalid_argument("keys must be one number a level");
  }
}

// Candidates of many nodes, likeliest first.
struct Candidates {
  std::vector<std::int64_t> tokens;
  std::vector<double> probabilities;
};

// The children of `count` nodes from their candidates, which begin at node number `first`.
Candidates chosen(const DraftRequest& request, const Candidates& found, std::size_t first, std::size_t count, std::size_t width,
                  std::size_t ranks, std::int64_t depth) {
  Candidates children{std::vector<std::int64_t>(count * ranks), std::vector<double>(count * ranks)};
  for (std::size_t i = 0; i < count; ++i) {
    const auto tokens = std::span(found.tokens).subspan((first + i) * width, width);
    const auto probabilities = std::span(found.probabilities).subspan((first + i) * width, width);
    const auto own = std::span(children.tokens).subspan(i * ranks, ranks);
    const auto estimates = std::span(children.probabilities).subspan(i * ranks, ranks);
    if (request.coupling) {
      couple(*request.coupling, request.coupling->keys[static_cast<std::size_t>(depth)], tokens, probabilities, own, estimates);
    } else {
      std::copy_n(tokens.begin(), ranks, own.begin());
      std::copy_n(probabilities.begin(), ranks, estimates.begin());
    }
  }
  return children;
}

}  // namespace

Drafts draft(const Cell& cell, std::span<const float> hidden, std::span<const DraftRequest> requests, const DraftSettings& settings,
             std::span<const std::int64_t> base_ids) {
  check(cell, hidden, requests, settings, base_ids);
  const auto wide = static_cast<std::size_t>(cell.width());
  const bool is_noisy = std::any_of(requests.begin(), requests.end(), [](const DraftRequest& request) { return request.coupling.has_value(); });
  const std::int64_t ranks = std::min(settings.num_ranks, cell.num_outputs());
  const std::int64_t num_candidates = is_noisy ? std::min(settings.num_candidates, cell.num_outputs()) : ranks;
  const auto width = static_cast<std::size_t>(num_candidates);
  std::vector<Growth> growths;
  for (const DraftRequest& request : requests) growths.emplace_back(request, settings);
  std::vector<float> parents(hidden.begin(), hidden.end()), states;
  std::vector<std::int64_t> tokens;
  Candidates found;
  Drafts drafts;
  for (std::int64_t depth = 0;; ++depth) {
    tokens.clear();
    if (depth > 0) parents.clear();
    for (Growth& growth : growths)
      for (const std::int64_t index : growth.frontier()) {
        Node& node = growth.node(index);
        if (depth > 0) {
          const auto above = states.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(growth.node(node.parent).row) * wide);
          parents.insert(parents.end(), above, above + static_cast<std::ptrdiff_t>(wide));
        }
        node.row = static_cast<std::int64_t>(tokens.size());
        tokens.push_back(node.token);
      }
    if (tokens.empty()) break;
    states.resize(tokens.size() * wide);
    found.tokens.resize(tokens.size() * width);
    found.probabilities.resize(found.tokens.size());
    ++drafts.num_passes;
    if (!cell.run(parents, tokens, depth, num_candidates, states.data(), found.tokens.data(), found.probabilities.data())) {
      drafts.usable = false;
      return drafts;
    }
    if (!base_ids.empty())
      for (std::int64_t& id : found.tokens) id = base_ids[static_cast<std::size_t>(id)];
    for (double& probability : found.probabilities) probability = std::max(probability, kTiny);
    std::size_t first = 0;
    for (std::size_t i = 0; i < growths.size(); ++i) {
      const std::size_t count = growths[i].frontier().size();
      if (count == 0) continue;
      const Candidates children = chosen(requests[i], found, first, count, width, static_cast<std::size_t>(ranks), depth);
      growths[i].add(children.tokens, children.probabilities, depth + 1);
      first += count;
    }
  }
  for (Growth& growth : growths) drafts.trees.push_back(growth.tree());
  return drafts;
}

}  // namespace headstart
