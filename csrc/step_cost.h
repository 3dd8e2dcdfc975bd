// T(rows) while decoding: src/headstart/plan/stepcost.py says what is learnt and why, this learns the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace headstart {

struct StepCostSettings {
  std::vector<std::int64_t> rows;  // that were profiled, rising, from 1
  std::vector<double> seconds;     // of each
  double context;                  // cached positions behind which they were timed
  double row_position_seconds;
  double slower, faster;  // logarithms beyond which an error does not count
  double scale_gain, knot_gain, stale_gain, stale_steps;
  double least_share;  // that a shorter context than the profile's leaves
  double most_correction;
};

class StepCost {
 public:
  // std::invalid_argument where the profile is none.
  explicit StepCost(StepCostSettings settings);

  std::int64_t num_steps() const { return num_steps_; }
  double scale() const;
  // T of ``first`` to ``last`` rows behind so many cached positions a row; none: as profiled.
  std::vector<double> range(std::int64_t first, std::int64_t last, std::optional<double> positions) const;
  double seconds(std::int64_t rows, std::optional<double> positions) const { return range(rows, rows, positions)[0]; }
  std::int64_t num_steps_unseen(std::int64_t rows) const;
  void observe(std::int64_t rows, double seconds, std::optional<double> positions);

 private:
  struct Near {
    std::size_t knot;
    double weight;
  };

  std::vector<Near> near(std::int64_t rows) const;
  double knot(std::size_t place) const;
  double slope(std::optional<double> positions) const;
  double limited(double value) const;
  void raise_times();

  StepCostSettings settings_;
  double scale_ = 0.0;
  std::vector<double> corrections_;
  std::vector<std::int64_t> last_seen_;
  std::int64_t num_steps_ = 0;
  std::vector<double> times_;  // at the profiled row counts now, none above a later one
};

}  // namespace headstart
