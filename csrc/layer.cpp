#include "layer.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace headstart {

namespace {

constexpr std::int64_t kLargest = std::int64_t{1} << 26;  // of any one size; products of two stay far from overflow

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void check_size(const std::string& name, std::int64_t value, std::int64_t multiple = 1) {
  const std::string found = name + " is " + std::to_string(value);
  require(value > 0 && value <= kLargest, found + "; it must lie between 1 and " + std::to_string(kLargest));
  require(value % multiple == 0, found + "; it must be a multiple of " + std::to_string(multiple));
}

void check_vector(const std::string& name, const std::vector<float>& values, std::int64_t size) {
  require(static_cast<std::int64_t>(values.size()) == size,
          name + " has " + std::to_string(values.size()) + " values; it needs " + std::to_string(size));
}

void check_optional(const std::string& name, const std::vector<float>& values, std::int64_t size) {
  if (!values.empty()) check_vector(name, values, size);
}

std::string shape(std::int64_t outputs, std::int64_t inputs) { return std::to_string(outputs) + " x " + std::to_string(inputs); }

void check_matrix(const std::string& name, const std::shared_ptr<const Linear>& matrix, std::int64_t outputs, std::int64_t inputs) {
  require(matrix != nullptr, name + " is missing");
  require(matrix->outputs() == outputs && matrix->inputs() == inputs,
          name + " is a matrix of " + shape(matrix->outputs(), matrix->inputs()) + "; it must be " + shape(outputs, inputs));
}

void check_affine(const std::string& name, const Affine& affine, std::int64_t outputs, std::int64_t inputs) {
  check_matrix(name, affine.matrix, outputs, inputs);
  check_optional(name + "_bias", affine.bias, outputs);
}

void check_layer(const std::string& name, const ModelSettings& s, const LayerWeights& layer) {
  check_vector(name + "attention_norm", layer.attention_norm, s.hidden_size);
  check_vector(name + "mlp_norm", layer.mlp_norm, s.hidden_size);
  check_optional(name + "q_norm", layer.q_norm, s.head_size);
  check_optional(name + "k_norm", layer.k_norm, s.head_size);
  if (s.beside_embedding) check_vector(name + "embedding_norm", layer.embedding_norm, s.hidden_size);
  check_affine(name + "q", layer.q, s.query_size(), s.attention_inputs());
  check_affine(name + "k", layer.k, s.kv_size(), s.attention_inputs());
  check_affine(name + "v", layer.v, s.kv_size(), s.attention_inputs());
  check_affine(name + "attention_output", layer.attention_output, s.hidden_size, s.query_size());
  check_affine(name + "gate", layer.gate, s.inner_size, s.hidden_size);
  check_affine(name + "up", layer.up, s.inner_size, s.hidden_size);
  check_affine(name + "down", layer.down, s.hidden_size, s.inner_size);
}

}  // namespace

void check(const ModelSettings& s) {
  check_size("num_layers", s.num_layers);
  check_size("hidden_size", s.hidden_size, 16);
  check_size("num_heads", s.num_heads);
  check_size("num_kv_heads", s.num_kv_heads);
  check_size("head_size", s.head_size, 16);
  check_size("inner_size", s.inner_size, 16);
  check_size("context_limit", s.context_limit);
  check_size("vocab_size", s.vocab_size);
  require(s.head_size <= 4096, "head_size is " + std::to_string(s.head_size) + "; it must be at most 4096");
  require(s.num_heads % s.num_kv_heads == 0, "num_heads is " + std::to_string(s.num_heads) +
                                                 "; it must be a multiple of num_kv_heads, " + std::to_string(s.num_kv_heads));
  check_size("num_heads * head_size", s.query_size());
  require(std::isfinite(s.norm_epsilon) && s.norm_epsilon >= 0, "norm_epsilon must be a finite number, at least 0");
  require(static_cast<std::int64_t>(s.inverse_frequencies.size()) == s.head_size / 2,
          "inverse_frequencies has " + std::to_string(s.inverse_frequencies.size()) + " values; it needs half of head_size");
  for (const double frequency : s.inverse_frequencies) require(std::isfinite(frequency), "inverse_frequencies must be finite");
  require(static_cast<std::int64_t>(s.windows.size()) == s.num_layers,
          "windows has " + std::to_string(s.windows.size()) + " values; it needs one a layer");
  for (const std::int64_t window : s.windows)
    require(window >= 0 && window <= kLargest,
            "windows holds " + std::to_string(window) + "; one must be 0 (full attention) or a number of positions");
  require(static_cast<std::int64_t>(s.rotary.size()) == s.num_layers,
          "rotary has " + std::to_string(s.rotary.size()) + " values; it needs one a layer");
  require(s.reads_hidden || !s.beside_embedding, "beside_embedding has no meaning in a stack that does not read hidden states");
  require(!s.reads_hidden || s.num_layers == 1,
          "num_layers is " + std::to_string(s.num_layers) + "; a stack that reads hidden states has one");
}

void check(const ModelSettings& s, const ModelWeights& weights) {
  require(weights.embedding != nullptr, "embedding is missing");
  check_matrix("embedding", weights.embedding, weights.embedding->outputs(), s.hidden_size);
  require(weights.output != nullptr, "output is missing");
  check_matrix("output", weights.output, weights.output->outputs(), s.hidden_size);
  require(weights.output->outputs() >= s.vocab_size, "vocab_size is " + std::to_string(s.vocab_size) + "; the output matrix has " +
                                                         std::to_string(weights.output->outputs()) + " rows");
  check_vector("norm", weights.norm, s.hidden_size);
  for (std::size_t i = 0; i < weights.layers.size(); ++i) check_layer("layers." + std::to_string(i) + ".", s, weights.layers[i]);
}

}  // namespace headstart
