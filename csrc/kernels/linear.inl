// Products of packed weights with 1 to many rows of activations; see linear_kernels.h for the layout.
//
// A tile of up to kRowTile rows and the panels of one group keeps all its sums in registers: a weight that has been loaded serves all
// rows of the tile, and an input all panels. Every sum is one chain over ascending inputs, whatever the tile's size: that is why a row
// has the same bits alone, among eight, and in a prompt of hundreds. More rows than a tile holds go through the same group again, while
// it still is in the cache.

#include "kernels/linear_ends.inl"

namespace headstart::HEADSTART_ISA {

// What a tile does with one step of the two float formats.
struct Float32Steps {
  using Weight = F;
  static constexpr std::int64_t kActivationBytes = 4;
  static Weight weight(const std::uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static Weight input(const std::uint8_t* p) { return set1(*reinterpret_cast<const float*>(p)); }
  static F dot(F sum, Weight w, Weight x) { return fma(w, x, sum); }
};
struct Bfloat16Steps {
  using Weight = P;
  static constexpr std::int64_t kActivationBytes = 4;
  static Weight weight(const std::uint8_t* p) { return load_pairs(reinterpret_cast<const std::uint16_t*>(p)); }
  static Weight input(const std::uint8_t* p) { return broadcast_pair(reinterpret_cast<const std::uint16_t*>(p)); }
  static F dot(F sum, Weight w, Weight x) { return dot_pairs(sum, w, x); }
};

// Tiles of many rows leave memory idle at each border of 4 kB, where the hardware's prefetchers stop; asking for what lies further ahead
// hides all of it (8 rows of q8_0: 90 to 160 GMAC/s a core). Whether it helps tiles of few rows depends on the machine
// (asks_ahead_for_few_rows in kernels.h).
constexpr int kManyFloatRows = 6, kManyByteRows = 4;

template <class Steps, int kRows, int kPanels>
void float_tile(const LinearTask& task, std::int64_t first_row) {
  F sums[kRows][kPanels];
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) sums[r][p] = zero();
  const bool ahead = kRows >= kManyFloatRows || task.ask_ahead;
  const std::uint8_t* weights = task.weights;
  const std::uint8_t* inputs = task.prepared + first_row * task.prepared_stride;
  const std::ptrdiff_t stride = task.prepared_stride;
  for (std::int64_t step = 0; step < task.num_steps; ++step) {
    if (ahead) prefetch<kSecondCache>(weights + kAhead, kPanels * 64);
    typename Steps::Weight w[kPanels];
    for (int p = 0; p < kPanels; ++p) w[p] = Steps::weight(weights + p * 64);
    for (int r = 0; r < kRows; ++r) {
      const typename Steps::Weight x = Steps::input(inputs + r * stride);
      for (int p = 0; p < kPanels; ++p) sums[r][p] = Steps::dot(sums[r][p], w[p], x);
    }
    weights += kPanels * 64;
    inputs += Steps::kActivationBytes;
  }
  for (int r = 0; r < kRows; ++r)
    for (int p = 0; p < kPanels; ++p) finish(task, first_row + r, p, sums[r][p]);
}

// The three byte kinds: where a panel's scales lie, how many registers of bytes a block has, and what its sums begin with.
struct Q8Blocks {
  static constexpr int kScaleBytes = 32, kDataBytes = 512;
  static constexpr bool kHasMinimum = false;
  static std::int32_t start(const ActivationBlock& x) { return x.start_128; }
  template <int kRows>
  static void dot(const std::uint8_t* data, const std::uint8_t* inputs, std::ptrdiff_t stride, I (&sums)[kRows]) {
    for (int i = 0; i < kBlockRegisters; ++i) {
      const B w = load_bytes(data + 64 * i);
      for (int r = 0; r < kRows; ++r)
        sums[r] = dot_bytes(sums[r], w, broadcast_bytes(reinterpret_cast<const std::int8_t*>(inputs + r * stride) + 4 * i));
    }
  }
};
struct NibbleBlocks {
  static constexpr int kDataBytes = 256;
  // A register of nibbles holds inputs 4i .. 4i + 3 in its low halves and 16 more in its high ones.
  template <int kRows>
  static void dot(const std::uint8_t* data, const std::uint8_t* inputs, std::ptrdiff_t stride, I (&sums)[kRows]) {
    for (int i = 0; i < kBlockRegisters / 2; ++i) {
      const B both = load_bytes(data + 64 * i), low = low_nibbles(both), high = high_nibbles(both);
      for (int r = 0; r < kRows; ++r) {
        const auto* x = reinterpret_cast<const std::int8_t*>(inputs + r * stride) + 4 * i;
        sums[r] = dot_nibbles(sums[r], low, broadcast_bytes(x));
        sums[r] = dot_nibbles(sums[r], high, broadcast_bytes(x + kBlock / 2));
      }
    }
  }
};
struct Q40Blocks : NibbleBlocks {
  static constexpr int kScaleBytes = 32;
  static constexpr bool kHasMinimum = false;
  static std::int32_t start(const ActivationBlock& x) { return x.start_8; }
};
struct Q41Blocks : NibbleBlocks {
  static constexpr int kScaleBytes = 64;  // sixteen scales, sixteen minima
  static constexpr bool kHasMinimum = true;
  static std::int32_t start(const ActivationBlock&) { return 0; }
};

template <class Blocks, int kRows>
void byte_tile(const LinearTask& task, std::int64_t first_row) {
  F sums[kRows];
  for (int r = 0; r < kRows; ++r) sums[r] = zero();
  const bool ahead = kRows >= kManyByteRows || task.ask_ahead;
  const std::uint8_t* scales = task.weights;
  const std::uint8_t* inputs = task.prepared + first_row * task.prepared_stride;
  const std::ptrdiff_t stride = task.prepared_stride;
  for (std::int64_t block = 0; block < task.num_steps; ++block) {
    if (ahead) prefetch<kSecondCache>(scales + kAhead, Blocks::kScaleBytes + Blocks::kDataBytes);
    const std::uint8_t* data = scales + Blocks::kScaleBytes;
    I products[kRows];
    for (int r = 0; r < kRows; ++r)
      products[r] = set1_int(Blocks::start(*reinterpret_cast<const ActivationBlock*>(inputs + r * stride)));
    Blocks::template dot<kRows>(data, inputs, stride, products);
    const F scale = load_f16(reinterpret_cast<const std::uint16_t*>(scales));
    for (int r = 0; r < kRows; ++r) {
      const auto& x = *reinterpret_cast<const ActivationBlock*>(inputs + r * stride);
      sums[r] = fma(to_float(products[r]), mul(scale, set1(x.scale)), sums[r]);
    }
    if constexpr (Blocks::kHasMinimum) {
      const F minimum = load_f16(reinterpret_cast<const std::uint16_t*>(scales) + kPanel);
      for (int r = 0; r < kRows; ++r) {
        const auto& x = *reinterpret_cast<const ActivationBlock*>(inputs + r * stride);
        sums[r] = fma(minimum, set1(x.scaled_sum), sums[r]);
      }
    }
    scales = data + Blocks::kDataBytes;
    inputs += sizeof(ActivationBlock);
  }
  for (int r = 0; r < kRows; ++r) finish(task, first_row + r, 0, sums[r]);
}

using Tile = void (*)(const LinearTask&, std::int64_t first_row);

template <class Steps, int kRows>
Tile float_tile_of(int panels) {
  static_assert(kPanelTile <= 3);
  if constexpr (kPanelTile >= 3)
    if (panels == 3) return float_tile<Steps, kRows, 3>;
  if constexpr (kPanelTile >= 2)
    if (panels == 2) return float_tile<Steps, kRows, 2>;
  return float_tile<Steps, kRows, 1>;
}

// All rows, in tiles of nearly equal height.
template <class TileOf>
void all_rows(const LinearTask& task, TileOf tile_of) {
  std::int64_t num_tiles = (task.num_rows + kRowTile - 1) / kRowTile;
  for (std::int64_t row = 0; num_tiles > 0; --num_tiles) {
    const std::int64_t rows = (task.num_rows - row + num_tiles - 1) / num_tiles;
    tile_of(static_cast<int>(rows))(task, row);
    row += rows;
  }
}

template <class Steps>
void float_product(const LinearTask& task) {
  static_assert(kRowTile <= 8);
  all_rows(task, [&](int rows) -> Tile {
    switch (rows) {
      case 1: return float_tile_of<Steps, 1>(task.num_panels);
      case 2: return float_tile_of<Steps, 2>(task.num_panels);
      case 3: return float_tile_of<Steps, 3>(task.num_panels);
      case 4: return float_tile_of<Steps, 4>(task.num_panels);
      case 5: return float_tile_of<Steps, 5>(task.num_panels);
      case 6: return float_tile_of<Steps, 6>(task.num_panels);
      case 7: return float_tile_of<Steps, 7>(task.num_panels);
      default: return float_tile_of<Steps, 8>(task.num_panels);
    }
  });
}

template <class Blocks>
void byte_product(const LinearTask& task) {
  all_rows(task, [](int rows) -> Tile {
    switch (rows) {
      case 1: return byte_tile<Blocks, 1>;
      case 2: return byte_tile<Blocks, 2>;
      case 3: return byte_tile<Blocks, 3>;
      case 4: return byte_tile<Blocks, 4>;
      case 5: return byte_tile<Blocks, 5>;
      case 6: return byte_tile<Blocks, 6>;
      case 7: return byte_tile<Blocks, 7>;
      default: return byte_tile<Blocks, 8>;
    }
  });
}

inline void prepare_bfloat16(const float* x, std::int64_t count, std::uint16_t* prepared) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store_bf16(prepared + i, load(x + i));
  for (; i < count; ++i) prepared[i] = narrow(x[i]);
  if (count % 2) prepared[count] = 0;
}

// scale = max |x| / 127, values = x / scale rounded to even. Blocks too small for a float32 inverse count as zeros; one that holds an
// infinity or NaN has a scale of NaN, so that it cannot pass unseen.
inline void prepare_bytes(const float* x, std::int64_t num_blocks, ActivationBlock* prepared) {
  constexpr float kSmallest = 0x1p-100f;
  for (std::int64_t block = 0; block < num_blocks; ++block, x += kBlock, ++prepared) {
    F low = load(x), high = load(x + kLanes);
    const F none = zero();
    const float largest = reduce_max(max(max(low, sub(none, low)), max(high, sub(none, high))));
    const F inverse = set1(largest < kSmallest ? 0.0f : 127.0f / largest);
    low = round_even(mul(low, inverse));
    high = round_even(mul(high, inverse));
    store_int8(prepared->values, low);
    store_int8(prepared->values + kLanes, high);
    const float sum = reduce_sum(add(low, high));  // of small whole numbers: exact
    const bool finite = sum == sum;
    prepared->scale = finite ? (largest < kSmallest ? 0.0f : largest / 127.0f) : sum;
    prepared->scaled_sum = prepared->scale * sum;
    prepared->start_128 = finite ? -128 * static_cast<std::int32_t>(sum) : 0;
    prepared->start_8 = finite ? -8 * static_cast<std::int32_t>(sum) : 0;
  }
}

constexpr LinearKernels linear_kernels = {
    .panels_in_group = kPanelTile,
    .tiles = nullptr,
    .float32 = float_product<Float32Steps>,
    .bfloat16 = float_product<Bfloat16Steps>,
    .q8_0 = byte_product<Q8Blocks>,
    .q4_0 = byte_product<Q40Blocks>,
    .q4_1 = byte_product<Q41Blocks>,
    .prepare_bfloat16 = prepare_bfloat16,
    .prepare_bytes = prepare_bytes,
};

}  // namespace headstart::HEADSTART_ISA
