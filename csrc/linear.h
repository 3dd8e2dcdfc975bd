// A weight matrix as the kernels want it: packed once, read once for all rows of a forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats.h"
#include "kernels/linear_kernels.h"

namespace headstart {

// How a Linear stores its values.
enum class Kind : std::uint8_t { float32, bfloat16, q8_0, q4_0, q4_1 };

// The kind of this name, and back; std::invalid_argument for any other name.
Kind kind_named(std::string_view name);
SourceKind source_kind(Kind kind);

// Copies share the packed weights, which never change.
class Linear {
 public:
  // Packs a row-major source [outputs, inputs]. `order`: source row of each output, or empty. Sources in blocks go unchanged into the
  // same kind; any source may be converted to float32, bfloat16 or q8_0. Throws std::invalid_argument where the source has another
  // size than these say, or the kind cannot hold them; std::out_of_range for a wrong row in `order`.
  Linear(std::span<const std::uint8_t> source, SourceKind source_kind, Kind kind, std::int64_t outputs, std::int64_t inputs,
         std::span<const std::int64_t> order = {});

  std::int64_t outputs() const { return outputs_; }
  std::int64_t inputs() const { return inputs_; }
  Kind kind() const { return kind_; }
  std::size_t num_bytes() const { return num_bytes_; }

  // Activations are brought into the kernel's format first ([rows] x prepared_bytes, 64-byte aligned), row by row and independently:
  // rounded to bfloat16, or quantised to int8 in blocks of 32. Matrices with the same activation() and inputs() take the same rows.
  Activation activation() const;
  std::size_t prepared_bytes() const;  // of one row, a multiple of 64
  void prepare(const float* x, void* prepared) const { prepare(x, 0, inputs_, prepared); }  // one row
  // Inputs [begin, end) of a row that begins at `prepared`, from x on: whole blocks or, in bfloat16, whole pairs, as far as the row has them.
  void prepare(const float* x, std::int64_t begin, std::int64_t end, void* prepared) const;

  // y[row, output] for the outputs of groups [begin, end): assigns, or adds to what y holds (residual). y starts at the first of these
  // outputs, `bias`, which may be null, at output 0. Each output is one dot product in an order of inputs that num_rows does not change.
  std::int64_t num_groups() const;
  std::int64_t group_outputs() const { return panels_in_group_ * kPanel; }  // the last group may have fewer
  void apply(const void* prepared, std::int64_t num_rows, std::int64_t begin, std::int64_t end, float* y, std::ptrdiff_t y_stride,
             const float* bias, bool add) const;

  // One row of the matrix, as float32 [inputs]: embeddings read the packed weights as well.
  void row(std::int64_t output, float* values) const;

  // The rows `outputs` as a matrix of their own, bit for bit. Throws std::out_of_range.
  Linear select(std::span<const std::int64_t> outputs) const;

 private:
  Linear(Kind kind, std::int64_t outputs, std::int64_t inputs);

  template <class Copy>
  void walk(std::int64_t output, Copy copy) const;
  void pack(std::int64_t output, std::uint8_t* row);
  std::vector<std::uint8_t> unpack(std::int64_t output) const;
  void check(std::int64_t output) const;
  bool in_tiles() const;  // by shape alone, since rows must not change the order of a sum

  Kind kind_;
  std::int64_t outputs_, inputs_;
  const LinearKernels* kernels_;  // those that the layout is made for
  std::int64_t num_steps_, num_panels_, panels_in_group_;
  std::size_t row_bytes_, panel_bytes_, num_bytes_;
  std::shared_ptr<std::uint8_t[]> weights_;
};

}  // namespace headstart
