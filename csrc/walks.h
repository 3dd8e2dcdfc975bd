// What guessers know of one sequence in one step, and the draft that grows from it.
//
// src/headstart/proposers/walk.py says what a walk and a draft are and why; here is the same, operation by operation, for walks
// whose guesses lie in native memory. A step of a small model takes a few milliseconds, and a draft of a dozen nodes, each of
// which is asked of every walk, takes a third of one in Python.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace headstart {

struct Child {
  std::int64_t token;
  double probability;
};
using Children = std::vector<Child>;  // in the order in which they were named, no token twice

// A position whose token followed the tail before, and how many tokens agree before it.
struct Match {
  std::int64_t position, length;
};

// Where a walk stands: a row, a depth, or what matches there; and the drafted tokens that led there, for walks that copy.
struct Place {
  std::int64_t row = 0;
  std::vector<Match> matches = {};
  std::vector<std::int64_t> path = {};
};
using State = std::optional<Place>;  // nothing: nothing to say behind it

class Walk {
 public:
  Walk() = default;
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  virtual ~Walk() = default;
  virtual State start() const = 0;
  virtual Children children(const Place& place) const = 0;
  // Its own children, as they weigh where others have something to say as well.
  virtual Children beside(const Place&, const Children& children) const { return children; }
  virtual State step(const Place& place, std::int64_t token) const = 0;
};

// A finished tree; behind nodes that it does not have it says nothing.
class TreeWalk : public Walk {
 public:
  // One entry a row, parents before their children. std::invalid_argument otherwise.
  TreeWalk(std::vector<std::int64_t> tokens, const std::vector<std::int64_t>& parents, std::vector<double> probabilities);
  State start() const override { return Place{}; }
  Children children(const Place& place) const override;
  State step(const Place& place, std::int64_t token) const override;

 private:
  std::vector<std::int64_t> tokens_;
  std::vector<double> probabilities_;
  std::vector<std::vector<std::int64_t>> children_;
};

// Parallel guesses: what stands at each depth, whatever was drafted before; behind a given path they are worth a share of that.
class DepthWalk : public Walk {
 public:
  DepthWalk(std::vector<Children> guesses, double behind_any_path) : guesses_(std::move(guesses)), behind_any_path_(behind_any_path) {}
  State start() const override { return guesses_.empty() ? State() : Place{}; }
  Children children(const Place& place) const override { return guesses_.at(static_cast<std::size_t>(place.row)); }
  Children beside(const Place& place, const Children& children) const override;
  State step(const Place& place, std::int64_t token) const override;

 private:
  std::vector<Children> guesses_;  // by depth
  double behind_any_path_;
};

// Nodes parents first, the root before them; estimates [rows, walks]: what each walk said of each node.
struct Grown {
  std::vector<std::int64_t> tokens, parents;
  std::vector<double> probabilities, estimates;
};

struct GrowthLimits {
  std::int64_t max_nodes, max_depth;
  double least_reach;
  double certain;  // more belief than this leaves room for the others all the same
};

// The likeliest paths of what the walks say.
Grown grow(std::int64_t root, std::span<const Walk* const> walks, const GrowthLimits& limits);

}  // namespace headstart
