// The part of the vocabulary's functions (vocabulary.h) that is compiled once an instruction set.
//
// All of them give the same bits on every instruction set: they are made of single IEEE 754 operations in the order that
// src/headstart/arithmetic.py and sampling.py define.
#pragma once

#include <cstdint>

namespace headstart {

constexpr std::int64_t kVocabularyBlock = 64;  // logits under one maximum

constexpr std::int64_t num_vocabulary_blocks(std::int64_t count) { return (count + kVocabularyBlock - 1) / kVocabularyBlock; }

constexpr std::int64_t kSumLanes = 512;  // of arithmetic.total

struct Noisiest {
  double score;
  std::int64_t id;  // -1: none yet
};

// How logits become log-weights: (x - top) / temperature.
struct Scaling {
  double top;
  double temperature;
};

// Which ids are likely enough for top-p, by the last of them; without weights: all.
struct NucleusLimit {
  const double* weights = nullptr;
  double least = 0;
  std::int64_t last_id = 0;  // among those of the least weight
};

struct VocabularyKernels {
  // arithmetic.log and arithmetic.exp, element by element.
  void (*log)(const double* x, std::int64_t count, double* y);
  void (*exp)(const double* x, std::int64_t count, double* y);

  // Adds x[i] to lane i mod kSumLanes, in ascending order.
  void (*add_to_lanes)(const double* x, std::int64_t count, double* lanes);

  // sampling.gumbel of the key.
  void (*gumbel)(std::uint64_t key, const std::int64_t* ids, std::int64_t count, double* noise);

  // The maximum of each block; false if there is a NaN.
  bool (*block_maxima)(const float* x, std::int64_t count, float* maxima);

  // exp of the log-weights, and each block's maximum of them.
  void (*weigh)(const float* x, std::int64_t count, Scaling scaling, double* weights, double* maxima);

  // Improves `best` by the ids of blocks [begin, end) whose log-weight is at least `border` (finite) and that `limit` holds: the
  // largest log-weight plus noise, ties to the lowest id. `maxima` are those of block_maxima.
  void (*scan)(const float* x, std::int64_t count, const float* maxima, std::int64_t begin, std::int64_t end, Scaling scaling,
               double border, const NucleusLimit& limit, std::uint64_t key, Noisiest* best);

  // The same over listed ids and their finite log-weights.
  void (*scan_listed)(const std::int64_t* ids, const double* log_weights, std::int64_t count, const NucleusLimit& limit,
                      std::uint64_t key, Noisiest* best);
};

}  // namespace headstart
