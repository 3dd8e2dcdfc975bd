#include "step_cost.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>

namespace headstart {

StepCost::StepCost(StepCostSettings settings)
    : settings_(std::move(settings)), corrections_(settings_.rows.size(), 0.0), last_seen_(settings_.rows.size(), 0) {
  const auto& rows = settings_.rows;
  const bool are_rising = std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) == rows.end();
  const bool are_times = std::all_of(settings_.seconds.begin(), settings_.seconds.end(), [](double t) { return t > 0 && std::isfinite(t); });
  if (rows.empty() || rows.size() != settings_.seconds.size() || rows[0] != 1 || !are_rising || !are_times)
    throw std::invalid_argument("a profile has seconds above 0 for rising row counts from 1");
  raise_times();
}

double StepCost::scale() const { return std::exp(scale_); }

std::vector<double> StepCost::range(std::int64_t first, std::int64_t last, std::optional<double> positions) const {
  if (first < 1 || last < first) throw std::invalid_argument("a step has at least one row");
  const auto& rows = settings_.rows;
  const double per_row = slope(positions);
  std::vector<double> found;
  found.reserve(static_cast<std::size_t>(last - first + 1));
  auto after = static_cast<std::size_t>(std::upper_bound(rows.begin(), rows.end(), first) - rows.begin());
  for (std::int64_t n = first; n <= last; ++n) {
    while (after < rows.size() && rows[after] <= n) ++after;
    double t = times_[0];
    if (rows.size() > 1) {
      const std::size_t low = std::min(after, rows.size() - 1) - 1;  // behind the last count T goes on as its last piece does
      const double width = static_cast<double>(rows[low + 1] - rows[low]), rise = times_[low + 1] - times_[low];
      t = times_[low] + rise * static_cast<double>(n - rows[low]) / width;
    } else {
      t = times_[0] + times_[0] * static_cast<double>(n - rows[0]) / static_cast<double>(rows[0]);
    }
    found.push_back(std::max(t + per_row * static_cast<double>(n), settings_.least_share * t));
  }
  return found;
}

std::int64_t StepCost::num_steps_unseen(std::int64_t rows) const {
  std::int64_t latest = 0;
  for (const Near& entry : near(rows))
    if (entry.weight >= 0.5) latest = std::max(latest, last_seen_[entry.knot]);
  return num_steps_ - latest;
}

void StepCost::observe(std::int64_t rows, double seconds, std::optional<double> positions) {
  ++num_steps_;
  const std::vector<Near> entries = near(rows);
  double expected = 0.0;  // by these alone, or they would drift below others
  for (const Near& entry : entries) expected += entry.weight * knot(entry.knot);
  if (rows > settings_.rows.back()) expected = this->seconds(rows, std::nullopt);
  expected = std::max(expected + slope(positions) * static_cast<double>(rows), settings_.least_share * expected);
  const double error = std::min(std::max(std::log(std::max(seconds, 1e-9) / expected), settings_.faster), settings_.slower);
  scale_ = limited(scale_ + settings_.scale_gain * error);
  for (const Near& entry : entries) {
    const double unseen = std::min(static_cast<double>(num_steps_ - last_seen_[entry.knot]) / settings_.stale_steps, 1.0);
    const double gain = settings_.knot_gain + (settings_.stale_gain - settings_.knot_gain) * unseen;
    corrections_[entry.knot] = limited(corrections_[entry.knot] + entry.weight * gain * error);
    if (entry.weight >= 0.5) last_seen_[entry.knot] = num_steps_;
  }
  raise_times();
}

std::vector<StepCost::Near> StepCost::near(std::int64_t rows) const {
  const auto& known = settings_.rows;
  if (rows < 1) throw std::invalid_argument("a step has at least one row");
  const auto after = static_cast<std::size_t>(std::upper_bound(known.begin(), known.end(), rows) - known.begin());
  if (after == known.size()) return {{after - 1, 1.0}};
  const double share = static_cast<double>(rows - known[after - 1]) / static_cast<double>(known[after] - known[after - 1]);
  return {{after - 1, 1.0 - share}, {after, share}};
}

double StepCost::knot(std::size_t place) const { return settings_.seconds[place] * std::exp(scale_ + corrections_[place]); }

double StepCost::slope(std::optional<double> positions) const {
  return positions ? settings_.row_position_seconds * (*positions - settings_.context) : 0.0;
}

double StepCost::limited(double value) const { return std::min(std::max(value, -settings_.most_correction), settings_.most_correction); }

void StepCost::raise_times() {
  times_.assign(settings_.rows.size(), 0.0);
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t place = times_.size(); place-- > 0;) times_[place] = least = std::min(least, knot(place));
}

}  // namespace headstart
