// Products on Intel's tile unit (AMX): sixteen rows by sixteen outputs by 32 bfloat16 inputs in one instruction of sixteen cycles, thirty
// times what vdpbf16ps does in that time (Intel, Software Developer's Manual, volume 2, TDPBF16PS).
//
// A panel's sixteen steps are a tile of weights as they lie in memory, and up to sixteen prepared rows are a tile of inputs. The
// instruction treats each row by itself, and adds to a sum 32 inputs at a time: their even ones, in ascending order, plus their odd
// ones. So all rows have to go through it, one row included, wherever a matrix does (TileKernels in linear_kernels.h).
//
// The unit is configured for one height. More rows than sixteen go through in tiles of one height as well, as low as possible; where
// they do not divide, the last tile begins among rows that are done. Two tiles of inputs meet two panels at a time, so that each tile
// that has been loaded serves twice: loading one from the second cache takes longer than multiplying it.
#pragma once

#include <immintrin.h>

#include <array>

#include "kernels/linear_ends.inl"

namespace headstart::HEADSTART_ISA {

constexpr int kTileRows = 16, kTileSteps = 16, kTileRegisters = 8;
static_assert(kTileInputs == 2 * kTileSteps);

// What ldtilecfg reads.
struct alignas(64) TileConfiguration {
  std::uint8_t palette, start_row;
  std::uint8_t reserved[14];
  std::uint16_t row_bytes[16];
  std::uint8_t rows[16];
};
static_assert(sizeof(TileConfiguration) == 64);

// Registers: sums of two tiles of inputs by two panels, then the inputs of both tiles, then the weights of both panels.
constexpr int kTilePanels = 2, kFirstWeights = 6;

constexpr TileConfiguration configuration(int height) {
  TileConfiguration result{};
  result.palette = 1;
  for (int i = 0; i < kTileRegisters; ++i) {
    result.row_bytes[i] = 64;
    result.rows[i] = static_cast<std::uint8_t>(i < kFirstWeights ? height : kTileSteps);
  }
  return result;
}

// In memory, because GCC 12 does not see that ldtilecfg reads all of a local one.
constexpr auto kConfigurations = [] {
  std::array<TileConfiguration, kTileRows> result{};
  for (int height = 1; height <= kTileRows; ++height) result[static_cast<std::size_t>(height - 1)] = configuration(height);
  return result;
}();

// How rows are divided into tiles.
struct RowTiles {
  explicit RowTiles(std::int64_t num_rows)
      : num_rows(num_rows), count((num_rows + kTileRows - 1) / kTileRows), height((num_rows + count - 1) / count) {}
  std::int64_t first(std::int64_t tile) const { return end(tile) - height; }
  std::int64_t first_new(std::int64_t tile) const { return tile * height; }
  std::int64_t end(std::int64_t tile) const { return (tile + 1) * height < num_rows ? (tile + 1) * height : num_rows; }
  std::int64_t num_rows, count, height;
};

inline void open_tiles(std::int64_t num_rows) {
  _tile_loadconfig(&kConfigurations[static_cast<std::size_t>(RowTiles(num_rows).height - 1)]);
}
inline void close_tiles() { _tile_release(); }

// Registers have to be literal numbers.
template <int kRegister>
void store_tile(float* sums, std::ptrdiff_t stride) {
  const auto bytes = stride * static_cast<std::ptrdiff_t>(sizeof(float));
  if constexpr (kRegister == 0) _tile_stored(0, sums, bytes);
  if constexpr (kRegister == 1) _tile_stored(1, sums, bytes);
  if constexpr (kRegister == 2) _tile_stored(2, sums, bytes);
  if constexpr (kRegister == 3) _tile_stored(3, sums, bytes);
}

template <int kRegister>
void load_tile(const float* sums, std::ptrdiff_t stride) {
  const auto bytes = stride * static_cast<std::ptrdiff_t>(sizeof(float));
  if constexpr (kRegister == 0) _tile_loadd(0, sums, bytes);
  if constexpr (kRegister == 1) _tile_loadd(1, sums, bytes);
  if constexpr (kRegister == 2) _tile_loadd(2, sums, bytes);
  if constexpr (kRegister == 3) _tile_loadd(3, sums, bytes);
}
template <int kRegister>
void zero_tile() {
  if constexpr (kRegister == 0) _tile_zero(0);
  if constexpr (kRegister == 1) _tile_zero(1);
  if constexpr (kRegister == 2) _tile_zero(2);
  if constexpr (kRegister == 3) _tile_zero(3);
}

template <int kRegister>
void finish_tile(const LinearTask& task, const RowTiles& rows, std::int64_t tile) {
  constexpr int panel = kRegister % kTilePanels;
  const std::int64_t first = rows.first(tile);
  if (!task.add && !task.bias && task.num_outputs >= (panel + 1) * kPanel) {
    store_tile<kRegister>(task.y + first * task.y_stride + panel * kPanel, task.y_stride);
    return;
  }
  alignas(64) float sums[kTileRows * kPanel];
  store_tile<kRegister>(sums, kPanel);
  for (std::int64_t row = rows.first_new(tile); row < rows.end(tile); ++row)
    finish(task, row, panel, load(sums + (row - first) * kPanel));
}

template <int kTiles, int kPanels>
void bfloat16_tile(const LinearTask& task, const RowTiles& rows, std::int64_t tile) {
  constexpr std::ptrdiff_t kStepBytes = kPanels * 64;
  const std::ptrdiff_t stride = task.prepared_stride;
  const std::uint8_t* weights = task.weights;
  const std::uint8_t* inputs = task.prepared + rows.first(tile) * stride;
  const std::uint8_t* more_inputs = task.prepared + rows.first(tile + kTiles - 1) * stride;
  const bool ahead = tile == 0;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  // Each tile asks ahead for one, so that requests come as evenly as loads do.
  for (std::int64_t step = 0; step < task.num_steps; step += kTileSteps) {
    _tile_loadd(4, inputs, stride);
    _tile_loadd(6, weights, kStepBytes);
    if (ahead) prefetch<kFirstCache>(weights + kAhead, kTileSteps * 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kPanels == 2) {
      _tile_loadd(7, weights + 64, kStepBytes);
      if (ahead) prefetch<kFirstCache>(weights + kAhead + kTileSteps * 64, kTileSteps * 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kTiles == 2) {
      _tile_loadd(5, more_inputs, stride);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kPanels == 2) _tile_dpbf16ps(3, 5, 7);
    }
    weights += kTileSteps * kStepBytes;
    inputs += 64;
    more_inputs += 64;
  }
  // What the first steps of the next panels will ask for again: writing sums takes so long that memory would have nothing to do.
  if (ahead) prefetch<kFirstCache>(weights + kAhead, kTiles * kPanels * kTileRows * 64);
  finish_tile<0>(task, rows, tile);
  if constexpr (kPanels == 2) finish_tile<1>(task, rows, tile);
  if constexpr (kTiles == 2) finish_tile<2>(task, rows, tile + 1);
  if constexpr (kTiles == 2 && kPanels == 2) finish_tile<3>(task, rows, tile + 1);
}

inline void bfloat16_tiles(const LinearTask& task) {
  const auto two = task.num_panels == 2 ? bfloat16_tile<2, 2> : bfloat16_tile<2, 1>;
  const auto one = task.num_panels == 2 ? bfloat16_tile<1, 2> : bfloat16_tile<1, 1>;
  const RowTiles rows(task.num_rows);
  std::int64_t tile = 0;
  for (; tile + 2 <= rows.count; tile += 2) two(task, rows, tile);
  if (tile < rows.count) one(task, rows, tile);
}

}  // namespace headstart::HEADSTART_ISA
