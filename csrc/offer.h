// What the proposers of one sequence offer together, and which of it is worth a row: src/headstart/plan/offer.py and budget.py say
// what is computed, this computes the same. It happens in every step with drafts, right behind a forward that has filled the caches.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "chances.h"
#include "walks.h"

namespace headstart {

using Rows = std::vector<std::int64_t>;

// Some rows of a tree, the root first.
struct Draft {
  Rows tokens, parents;
  std::vector<double> probabilities;
};

// Of some rows: what a member named and no cheaper one did, how likely that is to be reached, and what the member named in all.
struct Share {
  double reach = 0.0;
  std::int64_t num_own = 0, num_named = 0;
};

class Offer {
 public:
  // ``grown``: parents first, the root before them, estimates [rows, bits]; bits: of the members that were asked, one each.
  // std::invalid_argument where they do not fit each other.
  Offer(Grown grown, Rows bits);

  const std::vector<double>& reaches() const { return reaches_; }

  void weigh(const Chances& chances, const OwnChances& own);
  // The draft of these rows, which hold the parent of each, in rising order.
  Draft draft(std::span<const std::int64_t> rows) const;
  // What a member said of these rows, behind a 1 for the root.
  std::vector<double> estimates(std::span<const std::int64_t> rows, std::int64_t bit) const;
  Share share(std::span<const std::int64_t> rows, std::int64_t bit, std::int64_t cheaper) const;
  // Judges all nodes whose parent was committed; the rows that were right, from the root's child down.
  Rows learn(std::span<const std::int64_t> committed, Chances& chances, OwnChances& own) const;

 private:
  std::int64_t num_rows() const { return static_cast<std::int64_t>(grown_.tokens.size()); }
  std::size_t row_at(std::int64_t row) const;

  Grown grown_;
  Rows bits_, owners_, depths_, kinds_;
  std::vector<double> chances_, reaches_;
};

// Which rows of every tree to verify, rising, the root left out; expected tokens and seconds of the step.
struct Budget {
  std::vector<Rows> rows;
  double num_tokens, seconds;
};

// ``reaches[s][r]``: of row r of sequence s's tree; seconds[k]: of a step with k drafted nodes. std::invalid_argument without any.
Budget allot(std::span<const std::vector<double>> reaches, double num_tokens, std::span<const double> seconds, double margin);

}  // namespace headstart
