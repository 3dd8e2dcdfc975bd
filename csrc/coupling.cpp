#include "coupling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/kernels.h"

namespace headstart {

namespace {

constexpr double kNever = -700.0;  // a log-probability below which a candidate is none
constexpr double kNone = -std::numeric_limits<double>::infinity();

// How many of the candidates, likeliest first, survive top-k, top-p and min-p at the temperature, if they count as all there is.
std::size_t surviving(const Coupling& coupling, std::span<const double> log_weights) {
  std::size_t count = log_weights.size();
  const auto wanted = static_cast<std::size_t>(coupling.top_k);
  if (wanted > 0 && wanted < count)  // ties at the border stay
    while (count > wanted && log_weights[count - 1] < log_weights[wanted - 1]) --count;
  if (coupling.top_p < 1) {
    double sum = 0.0, reached = 0.0;
    for (std::size_t i = 0; i < count; ++i) sum += std::exp(log_weights[i]);
    std::size_t size = 0;
    while (size < count) {
      reached += std::exp(log_weights[size++]);
      if (reached >= coupling.top_p * sum) break;
    }
    count = size;
  }
  while (count > 1 && log_weights[count - 1] < coupling.log_min_p) --count;
  return count;
}

// What q gives to the candidates at all; heat takes from it, the more the more tokens there are besides.
double mass(const Coupling& coupling, std::span<const double> probabilities) {
  const double sum = std::min(std::accumulate(probabilities.begin(), probabilities.end(), 0.0), 1.0);
  const double power = 1 / coupling.temperature;
  const auto others = static_cast<double>(coupling.vocab_size) - static_cast<double>(probabilities.size());
  const bool truncates = coupling.top_k > 0 || coupling.top_p < 1 || coupling.log_min_p > kNone;
  if (power >= 1 || others <= 0 || truncates) return sum;
  const double outside = others * std::pow((1 - sum) / others, power);  // at most: if they are equally likely
  double within = 0.0;
  for (const double probability : probabilities) within += std::pow(probability, power);
  return within / (within + outside);
}

// Log-probabilities at the temperature among what survives; minus infinity for the rest.
std::vector<double> tempered(const Coupling& coupling, std::span<const double> probabilities) {
  std::vector<double> logs(probabilities.size());
  const double top = std::log(probabilities[0]);
  for (std::size_t i = 0; i < logs.size(); ++i) logs[i] = (std::log(probabilities[i]) - top) / coupling.temperature;
  std::fill(logs.begin() + static_cast<std::ptrdiff_t>(surviving(coupling, logs)), logs.end(), kNone);
  double sum = 0.0;
  for (const double value : logs) sum += std::exp(value);
  for (double& value : logs)
    if ((value -= std::log(sum)) < kNever) value = kNone;
  return logs;
}

}  // namespace

void couple(const Coupling& coupling, std::uint64_t key, std::span<const std::int64_t> candidates, std::span<const double> probabilities,
            std::span<std::int64_t> tokens, std::span<double> estimates) {
  const std::vector<double> logs = tempered(coupling, probabilities);
  std::vector<double> scores(logs.size());
  kernels().vocabulary.gumbel(key, candidates.data(), std::ssize(candidates), scores.data());
  for (std::size_t i = 0; i < scores.size(); ++i) scores[i] += logs[i];
  const double best = *std::max_element(scores.begin(), scores.end());
  double sum = 0.0;
  for (const double score : scores) sum += std::exp(coupling.sharpness * (score - best));
  const double share = mass(coupling, probabilities) / sum;
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = candidates[order[i]];
    estimates[i] = share * std::exp(coupling.sharpness * (scores[order[i]] - best));
  }
}

}  // namespace headstart
