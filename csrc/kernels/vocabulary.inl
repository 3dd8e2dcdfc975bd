// Logarithm, exponential, noise and maxima over a vocabulary, in vectors of doubles.
//
// src/headstart/arithmetic.py explains the two functions and src/headstart/sampling.py the noise; here is the same arithmetic,
// operation by operation (so the build must not contract a * b + c). Vectors are the compiler's own type, as wide as a register.
//
// Noise costs two logarithms a token, but hardly any token needs them. With u uniform, w = 1 - u and g = -log(-log u), -log(1 - w)
// >= w gives g <= -log w, and a lower bound of log2 w stands in its bits: exponent plus mantissa. A token whose log-weight plus
// that bound stays below the best score found so far cannot be the pick.
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/vocabulary_kernels.h"

namespace headstart::HEADSTART_ISA::vocabulary {

#if defined(__AVX512F__)
constexpr int kWide = 8;
#elif defined(__AVX__)
constexpr int kWide = 4;
#else
constexpr int kWide = 2;
#endif

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // inside one translation unit there is one way to pass vectors

using Doubles = double __attribute__((vector_size(8 * kWide)));
using Words = std::uint64_t __attribute__((vector_size(8 * kWide)));
using Singles = float __attribute__((vector_size(8 * kWide)));
using SingleFlags = std::int32_t __attribute__((vector_size(8 * kWide)));
using Narrow = float __attribute__((vector_size(4 * kWide)));

template <class Vector>
inline Vector read(const void* source) {
  Vector x;
  std::memcpy(&x, source, sizeof x);
  return x;
}

template <class Vector>
inline void write(void* destination, Vector x) {
  std::memcpy(destination, &x, sizeof x);
}

inline Doubles all(double x) { return Doubles{} + x; }
inline Words as_words(Doubles x) { return reinterpret_cast<Words>(x); }
inline Doubles as_doubles(Words x) { return reinterpret_cast<Doubles>(x); }

constexpr std::uint64_t kOneBits = 0x3ff0000000000000u, kSqrtHalfBits = 0x3fe6a09e667f3bcdu, kTwo52Bits = 0x4330000000000000u;
constexpr double kLog2High = 0x1.62e42fefa2p-1, kLog2Low = 0x1.9ef35793c7673p-41, kLog2Inverse = 0x1.71547652b82fep+0;
constexpr double kLowest = -708.0, kRounder = 0x1.8p52;

// Whole numbers below 2^52.
inline Doubles to_doubles(Words x) { return as_doubles(x | kTwo52Bits) - 0x1p52; }

inline Doubles log_of(Doubles x) {
  const Words bits = as_words(x);
  const Words biased = (bits + (kOneBits - kSqrtHalfBits)) >> 52;
  const Doubles m = as_doubles(bits + kOneBits - (biased << 52));
  const Doubles s = (m - 1.0) / (m + 1.0), z = s * s;
  Doubles p = z * (2.0 / 19) + 2.0 / 17;
  p = p * z + 2.0 / 15;
  p = p * z + 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  const Doubles k = to_doubles(biased) - 1023.0;
  return ((p * z) * s + (s + s) + k * kLog2Low) + k * kLog2High;
}

inline Doubles exp_of(Doubles x) {
  const Doubles lowest = all(kLowest);
  const Doubles clipped = x < lowest ? lowest : x;
  const Doubles shifted = clipped * kLog2Inverse + kRounder;
  const Doubles k = shifted - kRounder;
  const Doubles r = (clipped - k * kLog2High) - k * kLog2Low;
  Doubles p = r * (1.0 / 6227020800) + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  p = p * r + 1.0;
  p = p * r + 1.0;
  p = p * as_doubles((as_words(shifted) + 1023) << 52);
  return x < lowest ? Doubles{} : p;
}

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15u;

// SplitMix64's counter for a token, and its output function.
inline std::uint64_t counter(std::uint64_t key, std::int64_t id) { return key + (static_cast<std::uint64_t>(id) + 1) * kGolden; }

inline Words random_bits(Words z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

inline Doubles noise_of(Words bits) {
  const Doubles uniform = (as_doubles((bits >> 12) | kOneBits) - 1.0) + 0x1p-53;
  return -log_of(-log_of(uniform));
}

inline Doubles noise_bound(Words bits) {
  constexpr double kLog2 = 0x1.62e42fefa39efp-1, kMargin = 1e-6;  // the margin covers all rounding
  const Doubles w = (as_doubles((~bits >> 12) | kOneBits) - 1.0) + 0x1p-53;
  return (1023 * kLog2 + kMargin) - to_doubles(as_words(w) >> 32) * (kLog2 * 0x1p-20);
}

constexpr double kMostNoise = 36.8;  // noise_of is at most 36.74

// Applies `function` to vectors; the last one is filled up with ones.
template <class Function>
inline void each_vector(const double* x, std::int64_t count, double* y, Function function) {
  std::int64_t i = 0;
  for (; i + kWide <= count; i += kWide) write(y + i, function(read<Doubles>(x + i)));
  if (i == count) return;
  const std::size_t rest = static_cast<std::size_t>(count - i) * sizeof(double);
  Doubles last = all(1.0);
  std::memcpy(&last, x + i, rest);
  last = function(last);
  std::memcpy(y + i, &last, rest);
}

inline void log_all(const double* x, std::int64_t count, double* y) {
  each_vector(x, count, y, [](Doubles v) { return log_of(v); });
}

inline void exp_all(const double* x, std::int64_t count, double* y) {
  each_vector(x, count, y, [](Doubles v) { return exp_of(v); });
}

inline void add_to_lanes(const double* x, std::int64_t count, double* lanes) {
  for (std::int64_t begin = 0; begin < count; begin += kSumLanes) {
    const std::int64_t size = count - begin < kSumLanes ? count - begin : kSumLanes;
    for (std::int64_t i = 0; i < size; ++i) lanes[i] += x[begin + i];
  }
}

inline void gumbel(std::uint64_t key, const std::int64_t* ids, std::int64_t count, double* noise) {
  for (std::int64_t i = 0; i < count; i += kWide) {
    const int size = count - i < kWide ? static_cast<int>(count - i) : kWide;
    Words counters{};
    for (int lane = 0; lane < size; ++lane) counters[lane] = counter(key, ids[i + lane]);
    const Doubles values = noise_of(random_bits(counters));
    std::memcpy(noise + i, &values, static_cast<std::size_t>(size) * sizeof(double));
  }
}

// The block's values, filled up with minus infinity in `filled` where the row ends inside it.
inline const float* block_of(const float* x, std::int64_t count, std::int64_t block, float* filled) {
  const float* values = x + block * kVocabularyBlock;
  const std::int64_t size = count - block * kVocabularyBlock;
  if (size >= kVocabularyBlock) return values;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < kVocabularyBlock; ++i) filled[i] = i < size ? values[i] : kNothing;
  return filled;
}

inline bool block_maxima(const float* x, std::int64_t count, float* maxima) {
  constexpr int kLanesHere = 2 * kWide;
  SingleFlags is_nan{};
  float filled[kVocabularyBlock];
  for (std::int64_t block = 0; block < num_vocabulary_blocks(count); ++block) {
    const float* values = block_of(x, count, block, filled);
    Singles best = read<Singles>(values);
    is_nan |= best != best;
    for (int i = kLanesHere; i < kVocabularyBlock; i += kLanesHere) {
      const Singles next = read<Singles>(values + i);
      is_nan |= next != next;
      best = next > best ? next : best;
    }
    float most = best[0];
    for (int lane = 1; lane < kLanesHere; ++lane) most = best[lane] > most ? best[lane] : most;
    maxima[block] = most;
  }
  std::int32_t any = 0;
  for (int lane = 0; lane < kLanesHere; ++lane) any |= is_nan[lane];
  return any == 0;
}

inline Doubles log_weights(const float* x, Scaling scaling) {
  return (__builtin_convertvector(read<Narrow>(x), Doubles) - scaling.top) / scaling.temperature;
}

inline double largest(Doubles x) {
  double most = x[0];
  for (int lane = 1; lane < kWide; ++lane) most = x[lane] > most ? x[lane] : most;
  return most;
}

inline void weigh(const float* x, std::int64_t count, Scaling scaling, double* weights, double* maxima) {
  float filled[kVocabularyBlock];
  double values[kVocabularyBlock];
  for (std::int64_t block = 0; block < num_vocabulary_blocks(count); ++block) {
    const float* source = block_of(x, count, block, filled);
    const bool is_whole = source != filled;
    double* destination = is_whole ? weights + block * kVocabularyBlock : values;
    Doubles most{};
    for (int i = 0; i < kVocabularyBlock; i += kWide) {
      const Doubles weight = exp_of(log_weights(source + i, scaling));
      most = weight > most ? weight : most;
      write(destination + i, weight);
    }
    maxima[block] = largest(most);
    if (!is_whole)
      std::memcpy(weights + block * kVocabularyBlock, values,
                  static_cast<std::size_t>(count - block * kVocabularyBlock) * sizeof(double));
  }
}

inline void improve(Noisiest* best, double score, std::int64_t id) {
  if (score > best->score || (score == best->score && id < best->id) || best->id < 0) *best = {score, id};
}

inline bool holds(const NucleusLimit& limit, std::int64_t id) {
  if (!limit.weights) return true;
  const double weight = limit.weights[id];
  return weight > limit.least || (weight == limit.least && id <= limit.last_id);
}

inline void scan(const float* x, std::int64_t count, const float* maxima, std::int64_t begin, std::int64_t end, Scaling scaling,
                 double border, const NucleusLimit& limit, std::uint64_t key, Noisiest* best) {
  float filled[kVocabularyBlock];
  double weights[kVocabularyBlock], bounds[kVocabularyBlock];
  std::uint64_t bits[kVocabularyBlock];
  Words steps;
  for (int lane = 0; lane < kWide; ++lane) steps[lane] = static_cast<std::uint64_t>(lane) * kGolden;
  for (std::int64_t block = begin; block < end; ++block) {
    const double most = (static_cast<double>(maxima[block]) - scaling.top) / scaling.temperature;
    if (!(most >= border && most + kMostNoise >= best->score)) continue;
    const float* values = block_of(x, count, block, filled);
    const std::int64_t first = block * kVocabularyBlock;
    Words counters = steps + counter(key, first);
    Doubles highest = all(-std::numeric_limits<double>::infinity());
    for (int i = 0; i < kVocabularyBlock; i += kWide, counters += kWide * kGolden) {
      const Words random = random_bits(counters);
      const Doubles weight = log_weights(values + i, scaling), bound = weight + noise_bound(random);
      highest = bound > highest ? bound : highest;
      write(weights + i, weight);
      write(bounds + i, bound);
      write(bits + i, random);
    }
    if (largest(highest) < best->score) continue;
    for (int i = 0; i < kVocabularyBlock; i += kWide) {
      if (largest(read<Doubles>(bounds + i)) < best->score) continue;
      const Doubles scores = read<Doubles>(weights + i) + noise_of(read<Words>(bits + i));
      for (int lane = 0; lane < kWide; ++lane)
        if (weights[i + lane] >= border && holds(limit, first + i + lane)) improve(best, scores[lane], first + i + lane);
    }
  }
}

inline void scan_listed(const std::int64_t* ids, const double* log_weights, std::int64_t count, const NucleusLimit& limit,
                        std::uint64_t key, Noisiest* best) {
  for (std::int64_t i = 0; i < count; i += kWide) {
    const int size = count - i < kWide ? static_cast<int>(count - i) : kWide;
    Words counters{};
    Doubles weights = all(-std::numeric_limits<double>::infinity());
    for (int lane = 0; lane < size; ++lane) {
      counters[lane] = counter(key, ids[i + lane]);
      weights[lane] = log_weights[i + lane];
    }
    const Words bits = random_bits(counters);
    if (largest(weights + noise_bound(bits)) < best->score) continue;
    const Doubles scores = weights + noise_of(bits);
    for (int lane = 0; lane < size; ++lane)
      if (holds(limit, ids[i + lane])) improve(best, scores[lane], ids[i + lane]);
  }
}

#pragma GCC diagnostic pop

}  // namespace headstart::HEADSTART_ISA::vocabulary

namespace headstart::HEADSTART_ISA {

constexpr VocabularyKernels vocabulary_kernels{
    vocabulary::log_all,      vocabulary::exp_all, vocabulary::add_to_lanes, vocabulary::gumbel,
    vocabulary::block_maxima, vocabulary::weigh,   vocabulary::scan,         vocabulary::scan_listed,
};

}  // namespace headstart::HEADSTART_ISA
