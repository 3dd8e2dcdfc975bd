#include "offer.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <tuple>

namespace headstart {

namespace {

std::size_t place(std::int64_t row) { return static_cast<std::size_t>(row); }

}  // namespace

Offer::Offer(Grown grown, Rows bits) : grown_(std::move(grown)), bits_(std::move(bits)) {
  const std::size_t rows = grown_.tokens.size();
  if (!rows || grown_.parents.size() != rows || grown_.probabilities.size() != rows || grown_.estimates.size() != rows * bits_.size())
    throw std::invalid_argument("tokens, parents, probabilities and estimates of an offer have one entry a row");
  owners_.assign(rows, 0);
  depths_.assign(rows, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < bits_.size(); ++i)
      if (grown_.estimates[row * bits_.size() + i] > 0) owners_[row] += bits_[i];
    if (row == 0) continue;
    const std::int64_t parent = grown_.parents[row];
    if (parent < 0 || place(parent) >= row) throw std::invalid_argument("every parent stands before its child");
    depths_[row] = depths_[place(parent)] + 1;
  }
}

std::size_t Offer::row_at(std::int64_t row) const {
  if (row < 0 || row >= num_rows()) throw std::invalid_argument("an offer does not have this row");
  return place(row);
}

void Offer::weigh(const Chances& chances, const OwnChances& own) {
  const std::size_t rows = grown_.tokens.size();
  Rows offering(rows, 0);  // who offered children of a row
  for (std::size_t row = 1; row < rows; ++row) offering[place(grown_.parents[row])] |= owners_[row];
  kinds_.assign(rows, 0);
  chances_.assign(rows, 1.0);
  reaches_.assign(rows, 1.0);
  for (std::size_t row = 1; row < rows; ++row) {
    const std::size_t parent = place(grown_.parents[row]);
    kinds_[row] = 2 * owners_[row] + ((offering[parent] & ~owners_[row]) != 0);
    const double known = chances.scaled(kinds_[row], depths_[row], grown_.probabilities[row]);
    chances_[row] = std::min(known * own.factor(kinds_[row]), chances.most());
    reaches_[row] = reaches_[parent] * chances_[row];
  }
}

Draft Offer::draft(std::span<const std::int64_t> rows) const {
  Draft found{{grown_.tokens[0]}, {-1}, {1.0}};
  std::vector<std::int64_t> index(grown_.tokens.size(), -1);
  index[0] = 0;
  for (const std::int64_t row : rows) {
    const std::size_t at = row_at(row);
    const std::int64_t parent = at ? index[place(grown_.parents[at])] : -1;
    if (parent < 0) throw std::invalid_argument("a row of a draft stands before its parent, or without it");
    index[at] = static_cast<std::int64_t>(found.tokens.size());
    found.tokens.push_back(grown_.tokens[at]);
    found.parents.push_back(parent);
    found.probabilities.push_back(chances_.at(at));
  }
  return found;
}

std::vector<double> Offer::estimates(std::span<const std::int64_t> rows, std::int64_t bit) const {
  const auto found = std::find(bits_.begin(), bits_.end(), bit);
  std::vector<double> said{1.0};
  for (const std::int64_t row : rows)
    said.push_back(found == bits_.end() ? 0.0 : grown_.estimates[row_at(row) * bits_.size() + static_cast<std::size_t>(found - bits_.begin())]);
  return said;
}

Share Offer::share(std::span<const std::int64_t> rows, std::int64_t bit, std::int64_t cheaper) const {
  Share found;
  for (const std::int64_t row : rows) {
    const std::int64_t owners = owners_[row_at(row)];
    if (!(owners & bit)) continue;
    ++found.num_named;
    if (owners & cheaper) continue;
    ++found.num_own;
    found.reach += reaches_.at(place(row));
  }
  return found;
}

Rows Offer::learn(std::span<const std::int64_t> committed, Chances& chances, OwnChances& own) const {
  Rows path;
  std::int64_t row = 0, depth = 0;
  for (const std::int64_t token : committed) {
    ++depth;
    std::int64_t right = -1;
    for (std::int64_t child = row + 1; child < num_rows(); ++child) {
      const std::size_t at = place(child);
      if (grown_.parents[at] != row) continue;
      const bool is_hit = grown_.tokens[at] == token;
      const double estimate = grown_.probabilities[at];
      const std::int64_t kind = kinds_.at(at);
      const double factor = own.factor(kind);
      own.observe(kind, chances.scaled(kind, depth, estimate), is_hit);
      chances.observe(kind, depth, estimate, is_hit, factor);
      if (is_hit) right = child;
    }
    if (right < 0) break;
    path.push_back(right);
    row = right;
  }
  return path;
}

namespace {

// What a further node takes off the steps that a sequence waits for a token (below zero), its place among the sequence's own, the
// sequence and the row; in this order they are taken.
using Saving = std::tuple<double, std::int64_t, std::size_t, std::int64_t>;

void add_savings(std::vector<Saving>& found, std::size_t entry, const std::vector<double>& reaches) {
  Rows rows(reaches.empty() ? 0 : reaches.size() - 1);
  std::iota(rows.begin(), rows.end(), 1);
  std::stable_sort(rows.begin(), rows.end(), [&](std::int64_t a, std::int64_t b) { return reaches[place(a)] > reaches[place(b)]; });
  double tokens = 1.0, steps = 1.0, last = -1.0;
  std::int64_t number = 0;
  for (const std::int64_t row : rows) {
    tokens += reaches[place(row)];
    const double fewer = 1 / tokens;
    last = std::max(last, fewer - steps);  // not less than the one before by rounding either, or a node could come before its parent
    steps = fewer;
    found.push_back({last, number++, entry, row});
  }
}

}  // namespace

Budget allot(std::span<const std::vector<double>> reaches, double num_tokens, std::span<const double> seconds, double margin) {
  if (seconds.empty()) throw std::invalid_argument("the seconds of a step without drafts are missing");
  std::vector<Saving> savings;
  for (std::size_t entry = 0; entry < reaches.size(); ++entry) add_savings(savings, entry, reaches[entry]);
  std::sort(savings.begin(), savings.end());
  savings.resize(std::min(savings.size(), seconds.size() - 1));
  double waiting = static_cast<double>(reaches.size()), best_time = seconds[0] * waiting / (1 + margin);
  std::size_t best = 0;
  for (std::size_t count = 1; count <= savings.size(); ++count) {
    waiting += std::get<0>(savings[count - 1]);
    const double time = seconds[count] * waiting;
    if (time < best_time) best = count, best_time = time;
  }
  Budget budget{std::vector<Rows>(reaches.size()), num_tokens, seconds[best]};
  for (std::size_t i = 0; i < best; ++i) budget.rows[std::get<2>(savings[i])].push_back(std::get<3>(savings[i]));
  for (std::size_t entry = 0; entry < reaches.size(); ++entry) {
    std::sort(budget.rows[entry].begin(), budget.rows[entry].end());
    for (const std::int64_t row : budget.rows[entry]) budget.num_tokens += reaches[entry][place(row)];
  }
  return budget;
}

}  // namespace headstart
