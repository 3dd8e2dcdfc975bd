// The output side: from one row of logits to a token, without sorting or copying the vocabulary where it can be helped.
//
// src/headstart/sampling.py defines what is computed, to the last bit; this computes it faster. Blocks of 64 logits are known by
// their maximum, so a search for the largest values only looks into the blocks that can hold them. All functions work in the
// thread that calls them, with scratch memory of that thread.
#pragma once

#include <cstdint>
#include <span>

namespace headstart {

// sampling.Plan; ids ascending and within the row, values without NaN.
struct PickPlan {
  std::span<const std::int64_t> ids;
  std::span<const double> values;
  double temperature;
  std::int64_t top_k;
  double top_p;
  double log_min_p;
  std::uint64_t key;
};

// Instead of an id:
constexpr std::int64_t kUnusable = -1;  // the row's maximum is no finite number
constexpr std::int64_t kAllBanned = -2;

std::int64_t argmax(std::span<const float> logits);
std::int64_t pick(std::span<const float> logits, const PickPlan& plan);
// sampling.Sampler.distribution: what pick draws from. 0, or one of the values above.
std::int64_t distribution(std::span<const float> logits, const PickPlan& plan, std::span<double> probabilities);

// The likeliest ids, largest logit first, ties to the lowest id: as many as `ids` holds, at most the row's length.
// False: unusable; so for the next two.
bool top_k(std::span<const float> logits, std::span<std::int64_t> ids, std::span<float> values);
// sampling.log_softmax of some ids.
bool log_softmax(std::span<const float> logits, std::span<const std::int64_t> ids, double* values);
// top_k with the softmax probabilities over the whole row.
bool top_probabilities(std::span<const float> logits, std::span<std::int64_t> ids, std::span<double> probabilities);

double total(std::span<const double> values);  // arithmetic.total

}  // namespace headstart
