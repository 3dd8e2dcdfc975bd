#include "linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/kernels.h"
#include "memory.h"

namespace headstart {

namespace {

constexpr std::size_t kRegister = 64;                  // bytes
constexpr std::int64_t kMostWeights = std::int64_t{1} << 40;  // far above any matrix; keeps every size below an overflow

std::size_t round_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

bool in_blocks(Kind kind) { return kind != Kind::float32 && kind != Kind::bfloat16; }

// What a block of one output takes: its scales (d, m) and its bytes.
std::size_t scale_bytes(Kind kind) { return kind == Kind::q4_1 ? 4 : 2; }
std::size_t data_bytes(Kind kind) { return kind == Kind::q8_0 ? 32 : 16; }

// Other cores have prepared most rows. Fetched one by one as the products need them, their cache lines would cost more than the products
// of a small matrix; asked for all at once, they come at the same time.
void prefetch(const void* memory, std::size_t num_bytes) {
  constexpr std::size_t kMost = std::size_t{32} << 10;
  const auto* begin = static_cast<const std::uint8_t*>(memory);
  for (std::size_t i = 0; i < std::min(num_bytes, kMost); i += kRegister) __builtin_prefetch(begin + i);
}

class OpenTiles {
 public:
  OpenTiles(const TileKernels* tiles, std::int64_t num_rows) : tiles_(tiles) {
    if (tiles_) tiles_->open(num_rows);
  }
  ~OpenTiles() {
    if (tiles_) tiles_->close();
  }
  OpenTiles(const OpenTiles&) = delete;
  OpenTiles& operator=(const OpenTiles&) = delete;

 private:
  const TileKernels* tiles_;
};

// Signed bytes are stored with 128 added.
void flip_signs(Kind kind, std::vector<std::uint8_t>& row) {
  if (kind != Kind::q8_0) return;
  for (std::size_t i = 0; i < row.size(); ++i)
    if (i % 34 >= 2) row[i] ^= 0x80u;
}

}  // namespace

SourceKind source_kind(Kind kind) {
  switch (kind) {
    case Kind::float32: return SourceKind::float32;
    case Kind::bfloat16: return SourceKind::bfloat16;
    case Kind::q8_0: return SourceKind::q8_0;
    case Kind::q4_0: return SourceKind::q4_0;
    default: return SourceKind::q4_1;
  }
}

Kind kind_named(std::string_view name) {
  std::string valid;
  for (const Kind kind : {Kind::float32, Kind::bfloat16, Kind::q8_0, Kind::q4_0, Kind::q4_1}) {
    if (name_of(source_kind(kind)) == name) return kind;
    valid += (valid.empty() ? "" : ", ") + std::string(name_of(source_kind(kind)));
  }
  throw std::invalid_argument("a matrix cannot be stored as '" + std::string(name) + "'; choose one of: " + valid);
}

Linear::Linear(Kind kind, std::int64_t outputs, std::int64_t inputs)
    : kind_(kind), outputs_(outputs), inputs_(inputs), kernels_(&kernels().linear) {
  if (outputs < 1 || inputs < 1 || inputs > kMostWeights / outputs)
    throw std::invalid_argument("a matrix cannot have " + std::to_string(outputs) + " outputs and " + std::to_string(inputs) + " inputs");
  row_bytes_ = row_bytes(source_kind(kind), inputs);
  num_panels_ = (outputs + kPanel - 1) / kPanel;
  if (in_blocks(kind)) {
    panels_in_group_ = 1;
    num_steps_ = inputs / kBlock;
    panel_bytes_ = static_cast<std::size_t>(num_steps_) * kPanel * (scale_bytes(kind) + data_bytes(kind));
  } else {
    panels_in_group_ = in_tiles() ? kernels_->tiles->panels_in_group : kernels_->panels_in_group;
    num_steps_ = kind == Kind::bfloat16 ? (inputs + 1) / 2 : inputs;
    row_bytes_ = static_cast<std::size_t>(num_steps_) * 4;  // an odd bfloat16 row is padded with a zero
    panel_bytes_ = static_cast<std::size_t>(num_steps_) * kRegister;
  }
  num_bytes_ = static_cast<std::size_t>(num_panels_) * panel_bytes_;
}

Linear::Linear(std::span<const std::uint8_t> source, SourceKind from, Kind kind, std::int64_t outputs, std::int64_t inputs,
               std::span<const std::int64_t> order)
    : Linear(kind, outputs, inputs) {
  const std::size_t source_row = row_bytes(from, inputs);
  if (source.size() / source_row != static_cast<std::size_t>(outputs) || source.size() % source_row != 0)
    throw std::invalid_argument(std::to_string(outputs) + " rows of " + std::to_string(inputs) + " inputs as " + std::string(name_of(from)) +
                                " take " + std::to_string(source_row) + " bytes each, but the source has " +
                                std::to_string(source.size()) + " bytes");
  if (!order.empty() && order.size() != static_cast<std::size_t>(outputs))
    throw std::invalid_argument("`order` has " + std::to_string(order.size()) + " entries for " + std::to_string(outputs) + " outputs");
  for (const std::int64_t row : order) check(row);
  weights_ = allocate_in_huge_pages(num_bytes_);
  std::vector<std::uint8_t> row(row_bytes_);
  std::vector<float> values(static_cast<std::size_t>(inputs));
  for (std::int64_t output = 0; output < outputs; ++output) {
    const auto index = static_cast<std::size_t>(order.empty() ? output : order[static_cast<std::size_t>(output)]);
    const std::uint8_t* in = source.data() + index * source_row;
    if (from == source_kind(kind)) {
      std::memcpy(row.data(), in, source_row);
    } else {
      decode_row(from, in, inputs, values.data());
      encode_row(source_kind(kind), values.data(), inputs, row.data());
    }
    flip_signs(kind, row);
    pack(output, row.data());
  }
}

// copy(place in the packed weights, place in the row, number of bytes) for every piece of an output's row.
template <class Copy>
void Linear::walk(std::int64_t output, Copy copy) const {
  const std::int64_t panel = output / kPanel, lane = output % kPanel;
  if (!in_blocks(kind_)) {
    const std::int64_t first = panel / panels_in_group_ * panels_in_group_;
    const auto panels = static_cast<std::size_t>(std::min(panels_in_group_, num_panels_ - first));
    std::size_t place = static_cast<std::size_t>(first) * panel_bytes_ + static_cast<std::size_t>(panel - first) * kRegister +
                        static_cast<std::size_t>(lane) * 4;
    for (std::size_t step = 0; step < static_cast<std::size_t>(num_steps_); ++step, place += panels * kRegister) copy(place, step * 4, 4);
    return;
  }
  const std::size_t scales = scale_bytes(kind_), data = data_bytes(kind_);
  for (std::size_t block = 0; block < static_cast<std::size_t>(num_steps_); ++block) {
    const std::size_t start = static_cast<std::size_t>(panel) * panel_bytes_ + block * (scales + data) * kPanel;
    std::size_t place = start + static_cast<std::size_t>(lane) * 2, in_row = block * (scales + data);
    for (std::size_t i = 0; i < scales; i += 2, place += 2 * kPanel, in_row += 2) copy(place, in_row, 2);
    place = start + scales * kPanel + static_cast<std::size_t>(lane) * 4;
    for (std::size_t i = 0; i < data; i += 4, place += kRegister, in_row += 4) copy(place, in_row, 4);
  }
}

void Linear::pack(std::int64_t output, std::uint8_t* row) {
  walk(output, [&](std::size_t place, std::size_t in_row, std::size_t size) {
    std::memcpy(weights_.get() + place, row + in_row, size);
  });
}

std::vector<std::uint8_t> Linear::unpack(std::int64_t output) const {
  std::vector<std::uint8_t> row(row_bytes_);
  walk(output, [&](std::size_t place, std::size_t in_row, std::size_t size) {
    std::memcpy(row.data() + in_row, weights_.get() + place, size);
  });
  return row;
}

void Linear::check(std::int64_t output) const {
  if (output < 0 || output >= outputs_)
    throw std::out_of_range("row " + std::to_string(output) + " of a matrix of " + std::to_string(outputs_) + " rows");
}

Activation Linear::activation() const {
  return kind_ == Kind::float32 ? Activation::float32 : kind_ == Kind::bfloat16 ? Activation::bfloat16 : Activation::bytes;
}

std::size_t Linear::prepared_bytes() const {
  const std::size_t size = static_cast<std::size_t>(num_steps_) * (in_blocks(kind_) ? sizeof(ActivationBlock) : 4);
  // An odd number of cache lines: rows at a distance of a power of two would compete for the same few lines of the first cache.
  return (round_up(size, kRegister) / kRegister | 1) * kRegister;
}

void Linear::prepare(const float* x, std::int64_t begin, std::int64_t end, void* prepared) const {
  const std::int64_t count = end - begin;
  switch (activation()) {
    case Activation::float32:
      std::memcpy(static_cast<float*>(prepared) + begin, x, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case Activation::bfloat16: kernels_->prepare_bfloat16(x, count, static_cast<std::uint16_t*>(prepared) + begin); return;
    case Activation::bytes:
      kernels_->prepare_bytes(x, count / kBlock, static_cast<ActivationBlock*>(prepared) + begin / kBlock);
      return;
  }
}

bool Linear::in_tiles() const { return kernels_->tiles && kind_ == Kind::bfloat16 && inputs_ % kTileInputs == 0; }

std::int64_t Linear::num_groups() const { return (num_panels_ + panels_in_group_ - 1) / panels_in_group_; }

void Linear::apply(const void* prepared, std::int64_t num_rows, std::int64_t begin, std::int64_t end, float* y, std::ptrdiff_t y_stride,
                   const float* bias, bool add) const {
  if (num_rows == 0) return;
  void (*const kernels[])(const LinearTask&) = {kernels_->float32, kernels_->bfloat16, kernels_->q8_0, kernels_->q4_0, kernels_->q4_1};
  const auto kernel = in_tiles() ? kernels_->tiles->bfloat16 : kernels[static_cast<std::size_t>(kind_)];
  const OpenTiles open(in_tiles() ? kernels_->tiles : nullptr, num_rows);
  static const bool ask_ahead = asks_ahead_for_few_rows();
  prefetch(prepared, static_cast<std::size_t>(num_rows) * prepared_bytes());
  for (std::int64_t group = begin; group < end; ++group) {
    const std::int64_t panel = group * panels_in_group_, output = panel * kPanel;
    const std::int64_t panels = std::min(panels_in_group_, num_panels_ - panel);
    kernel({.weights = weights_.get() + static_cast<std::size_t>(panel) * panel_bytes_,
            .num_steps = num_steps_,
            .num_panels = static_cast<int>(panels),
            .num_outputs = static_cast<int>(std::min(panels * kPanel, outputs_ - output)),
            .prepared = static_cast<const std::uint8_t*>(prepared),
            .prepared_stride = static_cast<std::ptrdiff_t>(prepared_bytes()),
            .num_rows = num_rows,
            .y = y + (output - begin * group_outputs()),
            .y_stride = y_stride,
            .bias = bias ? bias + output : nullptr,
            .add = add,
            .ask_ahead = ask_ahead});
  }
}

void Linear::row(std::int64_t output, float* values) const {
  check(output);
  std::vector<std::uint8_t> packed = unpack(output);
  flip_signs(kind_, packed);
  decode_row(source_kind(kind_), packed.data(), inputs_, values);
}

Linear Linear::select(std::span<const std::int64_t> outputs) const {
  for (const std::int64_t output : outputs) check(output);
  Linear chosen(kind_, static_cast<std::int64_t>(outputs.size()), inputs_);
  chosen.weights_ = allocate_in_huge_pages(chosen.num_bytes_);
  for (std::size_t i = 0; i < outputs.size(); ++i) chosen.pack(static_cast<std::int64_t>(i), unpack(outputs[i]).data());
  return chosen;
}

}  // namespace headstart
