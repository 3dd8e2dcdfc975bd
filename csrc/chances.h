// What a node's estimate is worth: src/headstart/plan/chances.py says what is counted and why, this counts the same.
#pragma once

#include <cstdint>
#include <vector>

namespace headstart {

struct ChancesSettings {
  std::vector<double> edges;   // rising: where one size of estimates ends and the next begins
  std::vector<double> priors;  // [depths, sizes]: hits that are taken as seen, by which the quotient is shrunk
  double forget;               // of what was counted, at each observation
  double most;                 // that a chance may be
};

// Hits and expected hits of one kind of nodes, by place.
struct Counts {
  std::vector<double> hits, expected;
};

// What all sequences together have shown, by kind. A depth of 1 is that of the root's children.
class Chances {
 public:
  // std::invalid_argument where the settings do not fit each other.
  explicit Chances(ChancesSettings settings);
  double most() const { return settings_.most; }
  double scaled(std::int64_t kind, std::int64_t depth, double estimate) const;
  void observe(std::int64_t kind, std::int64_t depth, double estimate, bool is_hit, double factor);

 private:
  std::size_t place(std::int64_t depth, double estimate) const;

  ChancesSettings settings_;
  std::int64_t num_depths_;
  std::vector<Counts> kinds_;  // empty counts: nothing was seen
};

// What one sequence has shown, beside what all have.
class OwnChances {
 public:
  OwnChances(double prior, double forget) : prior_(prior), forget_(forget) {}
  double factor(std::int64_t kind) const;
  void observe(std::int64_t kind, double chance, bool is_hit);

 private:
  struct Count {
    double hits = 0.0, expected = 0.0;
  };

  double prior_, forget_;
  std::vector<Count> kinds_;
};

}  // namespace headstart
