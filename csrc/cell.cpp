#include "cell.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <utility>

#include "buffer.h"
#include "kernels/kernels.h"
#include "pool.h"
#include "vocabulary.h"

namespace headstart {

namespace {

void check_shape(const char* name, const Linear& matrix, std::int64_t outputs, std::int64_t inputs) {
  if (matrix.outputs() == outputs && matrix.inputs() == inputs) return;
  throw std::invalid_argument(std::string(name) + " is a matrix of " + std::to_string(matrix.outputs()) + " x " +
                              std::to_string(matrix.inputs()) + "; it must be " + std::to_string(outputs) + " x " +
                              std::to_string(inputs));
}

// Rows in a matrix's activation format.
class PreparedRows {
 public:
  PreparedRows(const Linear& matrix, std::int64_t num_rows)
      : matrix_(matrix), num_rows_(num_rows), rows_(static_cast<std::size_t>(num_rows) * matrix.prepared_bytes()) {}
  void set(std::int64_t row, const float* x) { matrix_.prepare(x, at(row)); }
  void multiply(std::int64_t begin, std::int64_t end, float* y, const float* bias, bool add) const {
    matrix_.apply(rows_.data(), num_rows_, begin, end, y + begin * matrix_.group_outputs(), matrix_.outputs(), bias, add);
  }
  // Groups of outputs that a worker takes at once.
  std::int64_t chunk(int num_workers) const { return std::max<std::int64_t>(1, matrix_.num_groups() / (8 * num_workers)); }

 private:
  void* at(std::int64_t row) { return rows_.as<std::uint8_t>() + static_cast<std::size_t>(row) * matrix_.prepared_bytes(); }

  const Linear& matrix_;
  std::int64_t num_rows_;
  Buffer rows_;
};

}  // namespace

Cell::Cell(Linear embedding, Linear inner, Linear project, Linear output, std::vector<std::vector<float>> biases)
    : embedding_(std::move(embedding)),
      inner_(std::move(inner)),
      project_(std::move(project)),
      output_(std::move(output)),
      biases_(std::move(biases)) {
  const std::int64_t size = inner_.outputs();
  if (size % kPanel != 0)
    throw std::invalid_argument("the inner size is " + std::to_string(size) + "; it must be a multiple of " + std::to_string(kPanel));
  check_shape("project", project_, width(), size);
  check_shape("inner", inner_, size, 2 * width());
  check_shape("embedding", embedding_, embedding_.outputs(), width());
  check_shape("output", output_, output_.outputs(), width());
  if (biases_.empty()) throw std::invalid_argument("there is no bias of any depth");
  for (const auto& bias : biases_)
    if (static_cast<std::int64_t>(bias.size()) != size)
      throw std::invalid_argument("a bias has " + std::to_string(bias.size()) + " numbers; it needs " + std::to_string(size));
}

bool Cell::run(std::span<const float> parents, std::span<const std::int64_t> tokens, std::int64_t depth, std::int64_t k, float* states,
               std::int64_t* ids, double* probabilities) const {
  if (depth < 0 || depth >= num_depths())
    throw std::out_of_range("depth " + std::to_string(depth) + " of a cell for " + std::to_string(num_depths()) + " depths");
  for (const std::int64_t token : tokens)
    if (token < 0 || token >= embedding_.outputs())
      throw std::out_of_range("token " + std::to_string(token) + " of a vocabulary of " + std::to_string(embedding_.outputs()));
  const auto num_rows = static_cast<std::int64_t>(tokens.size());
  const std::int64_t wide = width(), size = inner_.outputs();
  const float* bias = biases_[static_cast<std::size_t>(depth)].data();
  PreparedRows inputs(inner_, num_rows), activated(project_, num_rows), found(output_, num_rows);
  const auto floats = [&](std::int64_t columns) { return Buffer(static_cast<std::size_t>(num_rows * columns) * sizeof(float)); };
  const Buffer beside = floats(2 * wide), gate = floats(size), up = floats(size), logits = floats(num_outputs());
  std::atomic<bool> usable = true;
  Pool& pool = Pool::instance();

  const auto start = [&](std::int64_t row) {
    const float* parent = parents.data() + row * wide;
    float* both = beside.as<float>() + row * 2 * wide;
    std::copy_n(parent, wide, both);
    embedding_.row(tokens[static_cast<std::size_t>(row)], both + wide);
    std::copy_n(parent, wide, states + row * wide);
    inputs.set(row, both);
  };
  const auto activate = [&](std::int64_t begin, std::int64_t end) {
    inputs.multiply(begin, end, gate.as<float>(), bias, false);
    const std::int64_t first = begin * inner_.group_outputs(), count = std::min(end * inner_.group_outputs(), size) - first;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      float* up_row = up.as<float>() + row * size + first;
      std::fill_n(up_row, count, 1.0f);  // a SwiGLU of ones is SiLU
      kernels().stack.swiglu(gate.as<float>() + row * size + first, up_row, count);
    }
  };
  const auto choose = [&](std::int64_t row) {
    const auto index = static_cast<std::size_t>(row), width = static_cast<std::size_t>(k);
    const std::span<const float> own(logits.as<float>() + row * num_outputs(), static_cast<std::size_t>(num_outputs()));
    if (!top_probabilities(own, {ids + index * width, width}, {probabilities + index * width, width})) usable = false;
  };

  pool.run([&](int) {
    const auto each_row = [&](auto part) {
      pool.share(num_rows, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (; begin < end; ++begin) part(begin);
      });
    };
    const int num_workers = pool.num_threads();
    each_row(start);
    pool.share(inner_.num_groups(), inputs.chunk(num_workers), activate);
    each_row([&](std::int64_t row) { activated.set(row, up.as<float>() + row * size); });
    pool.share(project_.num_groups(), activated.chunk(num_workers),
               [&](std::ptrdiff_t begin, std::ptrdiff_t end) { activated.multiply(begin, end, states, nullptr, true); });
    each_row([&](std::int64_t row) { found.set(row, states + row * wide); });
    pool.share(output_.num_groups(), found.chunk(num_workers),
               [&](std::ptrdiff_t begin, std::ptrdiff_t end) { found.multiply(begin, end, logits.as<float>(), nullptr, false); });
    each_row(choose);
  });
  return usable;
}

}  // namespace headstart
