#include "vocabulary.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/kernels.h"

namespace headstart {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNoBorder = std::numeric_limits<double>::lowest();  // keeps all but minus infinity

// Weights by size: 128 buckets an octave, from 1 down to 2^-40.
constexpr int kBucketShift = 52 - 7;
constexpr std::size_t kNumBuckets = 40 * 128;
constexpr double kLeastCounted = 0x1p-40;
constexpr double kSumError = 1e-9;  // far above the difference of two orders of the same sum

struct Candidate {
  std::int64_t id;
  double log_weight;
  double weight;
};

struct Scratch {
  std::vector<float> row, maxima;
  std::vector<double> heads, weights, weight_maxima, masses;
  std::vector<Candidate> candidates;
  std::vector<std::int64_t> ids;
  std::vector<double> values;
};

Scratch& scratch() {
  thread_local Scratch memory;
  return memory;
}

// Maxima of the blocks into the scratch; false if the row's maximum is NaN or infinite.
bool find_maxima(std::span<const float> logits, Scratch& memory) {
  memory.maxima.resize(static_cast<std::size_t>(num_vocabulary_blocks(std::ssize(logits))));
  if (!kernels().vocabulary.block_maxima(logits.data(), std::ssize(logits), memory.maxima.data())) return false;
  return !memory.maxima.empty() && std::isfinite(*std::max_element(memory.maxima.begin(), memory.maxima.end()));
}

std::int64_t size_of_block(std::int64_t block, std::int64_t count) {
  return std::min(kVocabularyBlock, count - block * kVocabularyBlock);
}

std::int64_t first_of_maximum(const float* x, std::int64_t count, const std::vector<float>& maxima) {
  const auto best = std::max_element(maxima.begin(), maxima.end());  // the first of them
  const std::int64_t block = best - maxima.begin(), begin = block * kVocabularyBlock;
  const float* values = x + begin;
  return begin + (std::find(values, values + size_of_block(block, count), *best) - values);
}

// The rank-th largest (from 1); reorders the values.
template <class Value>
Value nth_largest(std::vector<Value>& values, std::int64_t rank) {
  const auto place = values.begin() + (rank - 1);
  std::nth_element(values.begin(), place, values.end(), std::greater<>());
  return *place;
}

std::size_t bucket_of(double weight) {
  return static_cast<std::size_t>((std::bit_cast<std::uint64_t>(1.0) - std::bit_cast<std::uint64_t>(weight)) >> kBucketShift);
}

bool likelier(const Candidate& a, const Candidate& b) { return a.weight > b.weight || (a.weight == b.weight && a.id < b.id); }

double fold_lanes(std::array<double, kSumLanes>& lanes) {
  for (std::int64_t half = kSumLanes / 2; half > 0; half /= 2)
    for (std::int64_t i = 0; i < half; ++i) lanes[static_cast<std::size_t>(i)] += lanes[static_cast<std::size_t>(i + half)];
  return lanes[0];
}

// exp(x - top) summed up over a row.
double total_weight(std::span<const float> logits, double top, Scratch& memory) {
  memory.weights.resize(logits.size());
  memory.weight_maxima.resize(memory.maxima.size());
  kernels().vocabulary.weigh(logits.data(), std::ssize(logits), {top, 1.0}, memory.weights.data(), memory.weight_maxima.data());
  return total(memory.weights);
}

double log_of(double x) {
  kernels().vocabulary.log(&x, 1, &x);
  return x;
}

double exp_of(double x) {
  kernels().vocabulary.exp(&x, 1, &x);
  return x;
}

// One pick, or the distribution behind it, at a temperature above 0. The tokens that the plan changes are minus infinity in the row and looked at apart.
class Draw {
 public:
  Draw(const float* row, std::int64_t count, Scaling scaling, const PickPlan& plan, Scratch& memory)
      : row_(row), count_(count), scaling_(scaling), plan_(plan), memory_(memory) {}

  std::int64_t pick() {
    cut();
    return is_listed_ ? noisiest_listed() : noisiest();
  }

  void distribution(std::span<double> probabilities) {
    cut();
    is_listed_ ? put_listed(probabilities) : put_all(probabilities);
    const double sum = total(probabilities);
    for (double& probability : probabilities) probability /= sum;
  }

 private:
  void cut() {
    if (plan_.top_k > 0) cut_to_top_k();
    if (plan_.top_p < 1) is_listed_ ? keep_nucleus_of_listed() : find_nucleus();
    border_ = std::max(border_, plan_.log_min_p);
  }

  void put_listed(std::span<double> weights) const {
    std::fill(weights.begin(), weights.end(), 0.0);
    for (const Candidate& candidate : memory_.candidates)
      if (candidate.log_weight >= border_) weights[static_cast<std::size_t>(candidate.id)] = exp_of(candidate.log_weight);
  }

  void put_all(std::span<double> weights) {
    if (limit_.weights == nullptr) weigh_all();
    std::copy(memory_.weights.begin(), memory_.weights.end(), weights.begin());
    if (border_ == kNoBorder && limit_.weights == nullptr) return;
    for (std::int64_t id = 0; id < count_; ++id)
      if (!stays(id, scaled(row_[id]))) weights[static_cast<std::size_t>(id)] = 0;
    for (std::size_t i = 0; i < plan_.ids.size(); ++i) {  // minus infinity in the row
      const auto id = static_cast<std::size_t>(plan_.ids[i]);
      weights[id] = stays(plan_.ids[i], scaled(plan_.values[i])) ? memory_.weights[id] : 0;
    }
  }

  bool stays(std::int64_t id, double log_weight) const {
    if (log_weight < border_) return false;
    if (limit_.weights == nullptr) return true;
    const double weight = limit_.weights[id];
    return weight > limit_.least || (weight == limit_.least && id <= limit_.last_id);
  }

  double scaled(double value) const { return (value - scaling_.top) / scaling_.temperature; }

  // Border: the k-th largest log-weight. No block below the k-th largest of the maxima can hold it.
  void cut_to_top_k() {
    auto& heads = memory_.heads;
    heads.clear();
    for (const float most : memory_.maxima) heads.push_back(scaled(most));
    for (const double value : plan_.values) heads.push_back(scaled(value));
    const double floor = std::ssize(heads) >= plan_.top_k ? std::max(kNoBorder, nth_largest(heads, plan_.top_k)) : kNoBorder;
    list_from(floor);
    if (std::ssize(memory_.candidates) < plan_.top_k) return;
    heads.clear();
    for (const Candidate& candidate : memory_.candidates) heads.push_back(candidate.log_weight);
    border_ = nth_largest(heads, plan_.top_k);
    std::erase_if(memory_.candidates, [&](const Candidate& candidate) { return candidate.log_weight < border_; });
    is_listed_ = true;
  }

  // Candidates with at least this log-weight, in ascending order of ids.
  void list_from(double floor) {
    auto& candidates = memory_.candidates;
    candidates.clear();
    for (std::int64_t block = 0; block < std::ssize(memory_.maxima); ++block) {
      if (scaled(memory_.maxima[static_cast<std::size_t>(block)]) < floor) continue;
      const std::int64_t begin = block * kVocabularyBlock, end = begin + size_of_block(block, count_);
      for (std::int64_t id = begin; id < end; ++id)
        if (const double value = scaled(row_[id]); value >= floor) candidates.push_back({id, value, 0});
    }
    const auto num_unchanged = std::ssize(candidates);
    for (std::size_t i = 0; i < plan_.ids.size(); ++i)
      if (const double value = scaled(plan_.values[i]); value >= floor) candidates.push_back({plan_.ids[i], value, 0});
    std::inplace_merge(candidates.begin(), candidates.begin() + num_unchanged, candidates.end(),
                       [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  }

  void keep_nucleus_of_listed() {
    auto& candidates = memory_.candidates;
    auto& values = memory_.values;
    values.clear();
    for (const Candidate& candidate : candidates) values.push_back(candidate.log_weight);
    kernels().vocabulary.exp(values.data(), std::ssize(values), values.data());
    std::array<double, kSumLanes> lanes{};
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      candidates[i].weight = values[i];
      lanes[static_cast<std::size_t>(candidates[i].id % kSumLanes)] += values[i];
    }
    std::sort(candidates.begin(), candidates.end(), likelier);
    const std::size_t last = crossing(0, plan_.top_p * fold_lanes(lanes));
    if (last < candidates.size()) candidates.resize(last + 1);
  }

  // The nucleus of the whole vocabulary, known by its last member. Whole buckets are added up first, so that only the bucket in
  // which the sum crosses the wanted mass has to be sorted. Where rounding could decide, the weights are added up as defined.
  void find_nucleus() {
    const double wanted = plan_.top_p * weigh_all();
    if (find_last_in_bucket(wanted)) return;
    list_weights(0, 1);
    std::sort(memory_.candidates.begin(), memory_.candidates.end(), likelier);
    const std::size_t last = crossing(0, wanted);
    if (last < memory_.candidates.size()) end_nucleus(memory_.candidates[last]);
  }

  bool find_last_in_bucket(double wanted) {
    count_masses();
    double above = 0;
    std::size_t bucket = 0;
    while (bucket < kNumBuckets && above + memory_.masses[bucket] < wanted * (1 - kSumError)) above += memory_.masses[bucket++];
    if (bucket == kNumBuckets) return false;
    const std::uint64_t largest = std::bit_cast<std::uint64_t>(1.0) - (static_cast<std::uint64_t>(bucket) << kBucketShift);
    list_weights(std::bit_cast<double>(largest - (std::uint64_t{1} << kBucketShift) + 1), std::bit_cast<double>(largest));
    auto& candidates = memory_.candidates;
    std::sort(candidates.begin(), candidates.end(), likelier);
    const std::size_t last = crossing(above, wanted * (1 - kSumError));
    if (last != crossing(above, wanted * (1 + kSumError)) || last == candidates.size()) return false;
    end_nucleus(candidates[last]);
    return true;
  }

  void count_masses() {
    memory_.masses.assign(kNumBuckets, 0);
    for (std::int64_t block = 0; block < std::ssize(memory_.maxima); ++block) {
      if (memory_.weight_maxima[static_cast<std::size_t>(block)] <= kLeastCounted) continue;
      const std::int64_t begin = block * kVocabularyBlock, end = begin + size_of_block(block, count_);
      for (std::int64_t id = begin; id < end; ++id)
        if (const double weight = memory_.weights[static_cast<std::size_t>(id)]; weight > kLeastCounted)
          memory_.masses[bucket_of(weight)] += weight;
    }
  }

  void end_nucleus(const Candidate& last) {
    limit_ = {memory_.weights.data(), last.weight, last.id};
    border_ = std::max(border_, log_of(std::max(last.weight, std::numeric_limits<double>::min())) - kSumError);
  }

  double weigh_all() {
    memory_.weights.resize(static_cast<std::size_t>(count_));
    memory_.weight_maxima.resize(memory_.maxima.size());
    kernels().vocabulary.weigh(row_, count_, scaling_, memory_.weights.data(), memory_.weight_maxima.data());
    for (std::size_t i = 0; i < plan_.ids.size(); ++i) {
      const auto id = static_cast<std::size_t>(plan_.ids[i]);
      double& most = memory_.weight_maxima[id / kVocabularyBlock];
      memory_.weights[id] = exp_of(scaled(plan_.values[i]));
      most = std::max(most, memory_.weights[id]);
    }
    return total(memory_.weights);
  }

  // Candidates of positive weight in [least, most].
  void list_weights(double least, double most) {
    memory_.candidates.clear();
    for (std::int64_t block = 0; block < std::ssize(memory_.maxima); ++block) {
      if (memory_.weight_maxima[static_cast<std::size_t>(block)] < least) continue;
      const std::int64_t begin = block * kVocabularyBlock, end = begin + size_of_block(block, count_);
      for (std::int64_t id = begin; id < end; ++id)
        if (const double weight = memory_.weights[static_cast<std::size_t>(id)]; weight > 0 && weight >= least && weight <= most)
          memory_.candidates.push_back({id, 0, weight});
    }
  }

  // The first candidate whose weight, added one by one to the mass before them, reaches `wanted`; their number if none does.
  std::size_t crossing(double mass, double wanted) const {
    std::size_t i = 0;
    while (i < memory_.candidates.size() && (mass += memory_.candidates[i].weight) < wanted) ++i;
    return i;
  }

  std::int64_t noisiest_listed() {
    memory_.ids.clear();
    memory_.values.clear();
    for (const Candidate& candidate : memory_.candidates) add(candidate.id, candidate.log_weight);
    return scan_listed();
  }

  std::int64_t noisiest() {
    memory_.ids.clear();
    memory_.values.clear();
    for (std::size_t i = 0; i < plan_.ids.size(); ++i) add(plan_.ids[i], scaled(plan_.values[i]));
    scan_listed();
    const auto& maxima = memory_.maxima;
    const std::int64_t likeliest = std::max_element(maxima.begin(), maxima.end()) - maxima.begin();
    scan(likeliest, likeliest + 1);  // a good score early saves work
    scan(0, std::ssize(maxima));
    return best_.id;
  }

  void add(std::int64_t id, double log_weight) {
    if (log_weight < border_) return;
    memory_.ids.push_back(id);
    memory_.values.push_back(log_weight);
  }

  std::int64_t scan_listed() {
    kernels().vocabulary.scan_listed(memory_.ids.data(), memory_.values.data(), std::ssize(memory_.ids), limit_, plan_.key,
                                     &best_);
    return best_.id;
  }

  void scan(std::int64_t begin, std::int64_t end) {
    kernels().vocabulary.scan(row_, count_, memory_.maxima.data(), begin, end, scaling_, border_, limit_, plan_.key, &best_);
  }

  const float* row_;
  std::int64_t count_;
  Scaling scaling_;
  const PickPlan& plan_;
  Scratch& memory_;
  double border_ = kNoBorder;  // of log-weights that stay
  NucleusLimit limit_;
  bool is_listed_ = false;     // the candidates are all that stay
  Noisiest best_{-kInfinity, -1};
};

// A copy of the row in which the changed tokens are minus infinity; corrects the maxima of their blocks.
const float* without_changed(std::span<const float> logits, const PickPlan& plan, Scratch& memory) {
  memory.row.assign(logits.begin(), logits.end());
  for (const std::int64_t id : plan.ids) memory.row[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  std::int64_t last = -1;
  for (const std::int64_t id : plan.ids) {
    const std::int64_t block = id / kVocabularyBlock;
    if (block == last) continue;
    last = block;
    kernels().vocabulary.block_maxima(memory.row.data() + block * kVocabularyBlock, size_of_block(block, std::ssize(logits)),
                                      memory.maxima.data() + block);
  }
  return memory.row.data();
}

std::int64_t best_of(const float* row, std::int64_t count, const PickPlan& plan, double top, const std::vector<float>& maxima) {
  const auto place = static_cast<std::size_t>(std::find(plan.values.begin(), plan.values.end(), top) - plan.values.begin());
  const std::int64_t changed_id = place == plan.values.size() ? count : plan.ids[place];
  const std::int64_t id = first_of_maximum(row, count, maxima);
  return row[id] == top ? std::min(id, changed_id) : changed_id;
}

// The largest value, changed tokens included.
double top_of(const PickPlan& plan, const Scratch& memory) {
  double top = *std::max_element(memory.maxima.begin(), memory.maxima.end());
  for (const double value : plan.values) top = std::max(top, value);
  return top;
}

void list_top(std::span<const float> logits, Scratch& memory, std::span<std::int64_t> ids) {
  float floor = -std::numeric_limits<float>::infinity();
  if (ids.size() < memory.maxima.size()) {
    std::vector<float> heads = memory.maxima;
    floor = nth_largest(heads, std::ssize(ids));
  }
  auto& found = memory.ids;
  found.clear();
  for (std::int64_t block = 0; block < std::ssize(memory.maxima); ++block) {
    if (memory.maxima[static_cast<std::size_t>(block)] < floor) continue;
    const std::int64_t begin = block * kVocabularyBlock, end = begin + size_of_block(block, std::ssize(logits));
    for (std::int64_t id = begin; id < end; ++id)
      if (logits[static_cast<std::size_t>(id)] >= floor) found.push_back(id);
  }
  std::partial_sort_copy(found.begin(), found.end(), ids.begin(), ids.end(), [&](std::int64_t a, std::int64_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  });
}

}  // namespace

double total(std::span<const double> values) {
  std::array<double, kSumLanes> lanes{};
  kernels().vocabulary.add_to_lanes(values.data(), std::ssize(values), lanes.data());
  return fold_lanes(lanes);
}

std::int64_t argmax(std::span<const float> logits) {
  Scratch& memory = scratch();
  return find_maxima(logits, memory) ? first_of_maximum(logits.data(), std::ssize(logits), memory.maxima) : kUnusable;
}

std::int64_t pick(std::span<const float> logits, const PickPlan& plan) {
  Scratch& memory = scratch();
  if (!find_maxima(logits, memory)) return kUnusable;
  const float* row = plan.ids.empty() ? logits.data() : without_changed(logits, plan, memory);
  const double top = top_of(plan, memory);
  if (top == -kInfinity) return kAllBanned;
  if (plan.temperature == 0) return best_of(row, std::ssize(logits), plan, top, memory.maxima);
  return Draw(row, std::ssize(logits), {top, plan.temperature}, plan, memory).pick();
}

std::int64_t distribution(std::span<const float> logits, const PickPlan& plan, std::span<double> probabilities) {
  Scratch& memory = scratch();
  if (!find_maxima(logits, memory)) return kUnusable;
  const float* row = plan.ids.empty() ? logits.data() : without_changed(logits, plan, memory);
  const double top = top_of(plan, memory);
  if (top == -kInfinity) return kAllBanned;
  if (plan.temperature == 0) {
    std::fill(probabilities.begin(), probabilities.end(), 0.0);
    probabilities[static_cast<std::size_t>(best_of(row, std::ssize(logits), plan, top, memory.maxima))] = 1;
  } else {
    Draw(row, std::ssize(logits), {top, plan.temperature}, plan, memory).distribution(probabilities);
  }
  return 0;
}

bool top_k(std::span<const float> logits, std::span<std::int64_t> ids, std::span<float> values) {
  Scratch& memory = scratch();
  if (!find_maxima(logits, memory)) return false;
  list_top(logits, memory, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) values[i] = logits[static_cast<std::size_t>(ids[i])];
  return true;
}

bool log_softmax(std::span<const float> logits, std::span<const std::int64_t> ids, double* values) {
  Scratch& memory = scratch();
  if (!find_maxima(logits, memory)) return false;
  const double top = *std::max_element(memory.maxima.begin(), memory.maxima.end());
  const double log_total = log_of(total_weight(logits, top, memory));
  for (std::size_t i = 0; i < ids.size(); ++i) values[i] = (logits[static_cast<std::size_t>(ids[i])] - top) - log_total;
  return true;
}

bool top_probabilities(std::span<const float> logits, std::span<std::int64_t> ids, std::span<double> probabilities) {
  Scratch& memory = scratch();
  if (!find_maxima(logits, memory)) return false;
  const double sum = total_weight(logits, *std::max_element(memory.maxima.begin(), memory.maxima.end()), memory);
  list_top(logits, memory, ids);
  for (std::size_t i = 0; i < ids.size(); ++i) probabilities[i] = memory.weights[static_cast<std::size_t>(ids[i])] / sum;
  return true;
}

}  // namespace headstart
