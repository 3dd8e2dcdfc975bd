// One level of a draft by heads that carry a state: src/headstart/heads/hydra.py defines what is computed, this fuses it.
//
// A level of one node multiplies a few megabytes of weights with a single row. As a dozen calls from Python it would spend more time
// between its products than in them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "linear.h"

namespace headstart {

// D: the model's width, m: the cell's inner size, V': rows of the output, K: depths.
class Cell {
 public:
  // embedding [V, D], inner [m, 2 D], project [D, m], output [V', D], biases: one of m numbers a depth. std::invalid_argument where sizes do
  // not fit each other; m is a multiple of 16.
  Cell(Linear embedding, Linear inner, Linear project, Linear output, std::vector<std::vector<float>> biases);

  std::int64_t width() const { return project_.outputs(); }
  std::int64_t num_outputs() const { return output_.outputs(); }
  std::int64_t num_depths() const { return static_cast<std::int64_t>(biases_.size()); }

  // n nodes of a level: states [n, D] = parents + project SiLU(inner [parents; embeddings of the tokens] + bias of the depth), and the k
  // likeliest output rows of each with their softmax probabilities, [n, k] both. std::out_of_range for a token or depth that does not
  // exist; false where a state is no finite number.
  bool run(std::span<const float> parents, std::span<const std::int64_t> tokens, std::int64_t depth, std::int64_t k, float* states,
           std::int64_t* ids, double* probabilities) const;

 private:
  Linear embedding_, inner_, project_, output_;
  std::vector<std::vector<float>> biases_;
};

}  // namespace headstart
