// Children that are coupled with the sampler's noise: src/headstart/proposers/children.py says which they are and why.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headstart {

// What the picks behind one sequence's root will use.
struct Coupling {
  std::vector<std::uint64_t> keys;  // of the noise, one a depth
  double temperature;               // above 0
  std::int64_t top_k;               // 0: off
  double top_p, log_min_p;          // 1, minus infinity: off
  std::int64_t vocab_size;          // tokens that may be sampled
  double sharpness;                 // how much a lead in noisy log-probability says
};

// From candidates of one node, likeliest first and with probabilities above 0, those `count` that the noise of `key` ranks first, and the
// estimates that they are picked; 0 fills the places of candidates that the request's truncation leaves out.
void couple(const Coupling& coupling, std::uint64_t key, std::span<const std::int64_t> candidates, std::span<const double> probabilities,
            std::span<std::int64_t> tokens, std::span<double> estimates);

}  // namespace headstart
