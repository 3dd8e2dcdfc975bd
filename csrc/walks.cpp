#include "walks.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <stdexcept>

namespace headstart {

namespace {

const Child* find(const Children& children, std::int64_t token) {
  const auto found = std::find_if(children.begin(), children.end(), [&](const Child& child) { return child.token == token; });
  return found == children.end() ? nullptr : &*found;
}

// Children that leave something open, and how much: nobody has a veto.
double doubt(Children& children, double certain) {
  double mass = 0.0;
  for (const Child& child : children) mass += child.probability;
  if (mass <= certain) return 1.0 - mass;
  for (Child& child : children) child.probability = child.probability * certain / mass;
  return 1.0 - certain;
}

// Dempster's rule for two: masses on single tokens, the rest on all of them.
Children both(Children ours, Children theirs, double certain) {
  const double our_rest = doubt(ours, certain), their_rest = doubt(theirs, certain);
  Children joint = ours;
  for (Child& child : joint) child.probability *= their_rest;
  for (const Child& child : theirs) {
    const Child* own = find(ours, child.token);
    if (own)
      joint[static_cast<std::size_t>(own - ours.data())].probability += child.probability * (own->probability + our_rest);
    else
      joint.push_back({child.token, child.probability * our_rest});
  }
  double total = 0.0;
  for (const Child& child : joint) total += child.probability;
  total += our_rest * their_rest;
  for (Child& child : joint) child.probability /= total;
  return joint;
}

// A node that was asked for its children: what each walk said, and where it stands.
struct Asked {
  std::vector<Children> said;
  std::vector<State> states;
  std::int64_t depth;  // of the children
};

// A node that may join. The likeliest path comes first; among equals what was said first.
struct Candidate {
  double value;
  std::int64_t number, parent, token;
  double probability;
  const Asked* asked;
  bool operator<(const Candidate& other) const { return value != other.value ? value < other.value : number > other.number; }
};

class Growing {
 public:
  Growing(std::int64_t root, std::span<const Walk* const> walks, const GrowthLimits& limits) : walks_(walks), limits_(limits) {
    join(root, -1, 1.0);
    grown_.estimates.assign(walks.size(), 0.0);
  }

  Grown run() && {
    if (std::min(limits_.max_nodes, limits_.max_depth) > 0) {
      std::vector<State> states;
      for (const Walk* walk : walks_) states.push_back(walk->start());
      ask(0, std::move(states), 1.0, 1);
    }
    while (!queue_.empty() && num_rows() <= limits_.max_nodes) {
      const Candidate next = queue_.top();
      queue_.pop();
      take(next);
    }
    return std::move(grown_);
  }

 private:
  std::int64_t num_rows() const { return static_cast<std::int64_t>(grown_.tokens.size()); }

  void join(std::int64_t token, std::int64_t parent, double probability) {
    grown_.tokens.push_back(token);
    grown_.parents.push_back(parent);
    grown_.probabilities.push_back(probability);
  }

  void take(const Candidate& next) {
    const std::int64_t row = num_rows(), depth = next.asked->depth;
    join(next.token, next.parent, next.probability);
    for (const Children& children : next.asked->said) {
      const Child* own = find(children, next.token);
      grown_.estimates.push_back(own ? own->probability : 0.0);
    }
    if (row >= limits_.max_nodes || depth >= limits_.max_depth) return;
    std::vector<State> behind(walks_.size());
    for (std::size_t i = 0; i < walks_.size(); ++i)
      if (const State& state = next.asked->states[i]) behind[i] = walks_[i]->step(*state, next.token);
    ask(row, std::move(behind), next.value, depth + 1);
  }

  void ask(std::int64_t row, std::vector<State> states, double reach, std::int64_t depth) {
    std::vector<Children> said(walks_.size());
    for (std::size_t i = 0; i < walks_.size(); ++i)
      if (states[i]) said[i] = walks_[i]->children(*states[i]);
    const Asked& asked = asked_.emplace_back(Asked{std::move(said), std::move(states), depth});
    for (const Child& child : combined(asked)) {
      const double value = reach * child.probability;
      if (value >= limits_.least_reach) queue_.push({value, ++number_, row, child.token, child.probability, &asked});
    }
  }

  Children combined(const Asked& asked) const {
    const auto speaks = [](const Children& children) { return !children.empty(); };
    const bool several = std::count_if(asked.said.begin(), asked.said.end(), speaks) > 1;
    Children joint;
    for (std::size_t i = 0; i < walks_.size(); ++i) {
      if (asked.said[i].empty()) continue;
      Children heard = several ? walks_[i]->beside(*asked.states[i], asked.said[i]) : asked.said[i];
      joint = joint.empty() ? std::move(heard) : both(std::move(joint), std::move(heard), limits_.certain);
    }
    return joint;
  }

  std::span<const Walk* const> walks_;
  const GrowthLimits limits_;
  Grown grown_;
  std::deque<Asked> asked_;  // which does not move what it holds
  std::priority_queue<Candidate> queue_;
  std::int64_t number_ = 0;
};

}  // namespace

TreeWalk::TreeWalk(std::vector<std::int64_t> tokens, const std::vector<std::int64_t>& parents, std::vector<double> probabilities)
    : tokens_(std::move(tokens)), probabilities_(std::move(probabilities)), children_(tokens_.size()) {
  if (tokens_.empty() || tokens_.size() != parents.size() || tokens_.size() != probabilities_.size())
    throw std::invalid_argument("tokens, parents and probabilities of a tree have one entry a row");
  for (std::size_t row = 1; row < parents.size(); ++row) {
    const std::int64_t parent = parents[row];
    if (parent < 0 || parent >= static_cast<std::int64_t>(row)) throw std::invalid_argument("every parent stands before its child");
    children_[static_cast<std::size_t>(parent)].push_back(static_cast<std::int64_t>(row));
  }
}

Children TreeWalk::children(const Place& place) const {
  Children found;
  for (const std::int64_t row : children_.at(static_cast<std::size_t>(place.row)))
    found.push_back({tokens_[static_cast<std::size_t>(row)], probabilities_[static_cast<std::size_t>(row)]});
  return found;
}

State TreeWalk::step(const Place& place, std::int64_t token) const {
  for (const std::int64_t row : children_.at(static_cast<std::size_t>(place.row)))
    if (tokens_[static_cast<std::size_t>(row)] == token) return Place{.row = row};
  return {};
}

Children DepthWalk::beside(const Place& place, const Children& children) const {
  Children found = children;
  if (place.row > 0)
    for (Child& child : found) child.probability *= behind_any_path_;
  return found;
}

State DepthWalk::step(const Place& place, std::int64_t) const {
  if (place.row + 1 >= static_cast<std::int64_t>(guesses_.size())) return {};
  return Place{.row = place.row + 1};
}

Grown grow(std::int64_t root, std::span<const Walk* const> walks, const GrowthLimits& limits) { return Growing(root, walks, limits).run(); }

}  // namespace headstart
