#include "chances.h"

#include <algorithm>
#include <stdexcept>

namespace headstart {

namespace {

// Two numbers of who may have named a node, for each set of at most eight members: far more than anybody asks.
constexpr std::int64_t kMostKinds = 2 << 8;

std::size_t checked(std::int64_t kind) {
  if (kind < 0 || kind >= kMostKinds) throw std::invalid_argument("a kind of nodes is none that eight members could make");
  return static_cast<std::size_t>(kind);
}

template <class Value>
Value& at(std::vector<Value>& kinds, std::int64_t kind) {
  const std::size_t place = checked(kind);
  if (place >= kinds.size()) kinds.resize(place + 1);
  return kinds[place];
}

}  // namespace

Chances::Chances(ChancesSettings settings) : settings_(std::move(settings)) {
  const std::size_t sizes = settings_.edges.size() + 1;
  if (settings_.priors.empty() || settings_.priors.size() % sizes) throw std::invalid_argument("priors have one entry a depth and size");
  num_depths_ = static_cast<std::int64_t>(settings_.priors.size() / sizes);
}

double Chances::scaled(std::int64_t kind, std::int64_t depth, double estimate) const {
  const std::size_t number = checked(kind);
  if (number >= kinds_.size() || kinds_[number].hits.empty()) return std::min(estimate, settings_.most);
  const std::size_t at = place(depth, estimate);
  const double prior = settings_.priors[at];
  return std::min(estimate * (prior + kinds_[number].hits[at]) / (prior + kinds_[number].expected[at]), settings_.most);
}

void Chances::observe(std::int64_t kind, std::int64_t depth, double estimate, bool is_hit, double factor) {
  Counts& counts = headstart::at(kinds_, kind);
  if (counts.hits.empty()) counts = {std::vector<double>(settings_.priors.size()), std::vector<double>(settings_.priors.size())};
  const std::size_t at = place(depth, estimate);
  counts.hits[at] = settings_.forget * counts.hits[at] + is_hit;
  counts.expected[at] = settings_.forget * counts.expected[at] + std::min(estimate * factor, 1.0);
}

std::size_t Chances::place(std::int64_t depth, double estimate) const {
  if (depth < 1) throw std::invalid_argument("the depth of a drafted node is at least 1");
  const auto size = std::upper_bound(settings_.edges.begin(), settings_.edges.end(), estimate) - settings_.edges.begin();
  const std::int64_t sizes = static_cast<std::int64_t>(settings_.edges.size()) + 1;
  return static_cast<std::size_t>((std::min(depth, num_depths_) - 1) * sizes + size);
}

double OwnChances::factor(std::int64_t kind) const {
  const std::size_t number = checked(kind);
  if (number >= kinds_.size()) return 1.0;
  return (prior_ + kinds_[number].hits) / (prior_ + kinds_[number].expected);
}

void OwnChances::observe(std::int64_t kind, double chance, bool is_hit) {
  Count& count = at(kinds_, kind);
  count.hits = forget_ * count.hits + is_hit;
  count.expected = forget_ * count.expected + chance;
}

}  // namespace headstart
