// The weights of a decoder and the sizes that they agree on.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "linear.h"

namespace headstart {

enum class CacheKind : std::uint8_t { float32, bfloat16 };

struct ModelSettings {
  std::int64_t num_layers;
  std::int64_t hidden_size;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_size;
  std::int64_t inner_size;
  std::int64_t context_limit;
  std::int64_t vocab_size;  // ids that may be sampled
  float norm_epsilon;
  std::vector<double> inverse_frequencies;  // [head_size / 2]
  std::vector<std::int64_t> windows;        // [num_layers]; 0: full attention
  std::vector<bool> rotary;                 // [num_layers]; false: queries and keys carry no position
  CacheKind cache_kind;
  // A drafting layer (one layer; EAGLE-3, Li et al. 2025): every row comes with a hidden state, which is the residual stream;
  // attention reads the normalised embedding of the row's token beside the normalised state; and what a row hands out as its
  // hidden state is the layer's own output, before the last norm, so that it can be fed again.
  bool reads_hidden;
  // Whether attention of a drafting layer reads the embedding at all; without it, it is a layer of an ordinary stack over the
  // states that are given (the heads of Gloeckle et al. 2024).
  bool beside_embedding;

  std::int64_t query_size() const { return num_heads * head_size; }
  std::int64_t kv_size() const { return num_kv_heads * head_size; }
  std::int64_t attention_inputs() const { return beside_embedding ? 2 * hidden_size : hidden_size; }
  std::int64_t heads_per_kv_head() const { return num_heads / num_kv_heads; }
};

// A matrix and its bias (empty: none).
struct Affine {
  std::shared_ptr<const Linear> matrix;
  std::vector<float> bias;

  const float* bias_data() const { return bias.empty() ? nullptr : bias.data(); }
};

struct LayerWeights {
  std::vector<float> attention_norm, mlp_norm;
  std::vector<float> embedding_norm;   // of a drafting layer, else empty
  std::vector<float> q_norm, k_norm;  // [head_size], or empty
  Affine q, k, v, attention_output;
  Affine gate, up, down;
};

struct ModelWeights {
  std::shared_ptr<const Linear> embedding, output;
  std::vector<float> norm;
  std::vector<LayerWeights> layers;
};

// Every size fits every other, or std::invalid_argument names the first that does not.
void check(const ModelSettings& settings);
void check(const ModelSettings& settings, const ModelWeights& weights);

}  // namespace headstart
