// Attention on the tile unit, over a cache in bfloat16: the same steps as in attention.inl, with other products.
//
// A panel of keys is a tile for every 32 of the head's numbers, and 32 positions of values are one for every sixteen. So values are
// added in blocks of 32 positions whose borders are multiples of 32, each row's last block from a copy that zeros fill up.
#include "kernels/elementwise.inl"

#include "kernels/attention.inl"
#include "kernels/tiles.inl"

namespace headstart::HEADSTART_ISA {

struct TiledBfloat16 : CachedBfloat16 {
  static constexpr int kBlock = kTileInputs;
};
static_assert(TiledBfloat16::kBlock <= kMostBlock);

constinit thread_local std::ptrdiff_t open_height = 0;  // of this thread's tiles; 0: they are closed

template <>
struct Product<TiledBfloat16> {
  using Element = TiledBfloat16::Element;
  const Element* x;
  std::ptrdiff_t x_stride;
  const Element* w;
  std::ptrdiff_t step;
  std::ptrdiff_t column;
  std::ptrdiff_t count;  // a multiple of kTileSteps
  float* sums;
  std::ptrdiff_t sums_stride;
  bool add;

  template <int kColumns>
  void tile(std::ptrdiff_t row, std::ptrdiff_t first_column) const {
    const Element* left = x + row * x_stride;
    const Element* right = w + first_column * column;
    float* out = sums + row * sums_stride + first_column * kLanes;
    begin_tile<0>(out);
    if constexpr (kColumns > 1) begin_tile<1>(out + kLanes);
    if constexpr (kColumns > 2) begin_tile<2>(out + 2 * kLanes);
    if constexpr (kColumns > 3) begin_tile<3>(out + 3 * kLanes);
    for (std::ptrdiff_t i = 0; i < count; i += kTileSteps, left += kTileInputs, right += kTileSteps * step) {
      _tile_loadd(4, left, bytes(x_stride));
      _tile_loadd(6, right, bytes(step));
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kColumns > 1) {
        _tile_loadd(7, right + column, bytes(step));
        _tile_dpbf16ps(1, 4, 7);
      }
      if constexpr (kColumns > 2) {
        _tile_loadd(6, right + 2 * column, bytes(step));
        _tile_dpbf16ps(2, 4, 6);
      }
      if constexpr (kColumns > 3) {
        _tile_loadd(7, right + 3 * column, bytes(step));
        _tile_dpbf16ps(3, 4, 7);
      }
    }
    store_tile<0>(out, sums_stride);
    if constexpr (kColumns > 1) store_tile<1>(out + kLanes, sums_stride);
    if constexpr (kColumns > 2) store_tile<2>(out + 2 * kLanes, sums_stride);
    if constexpr (kColumns > 3) store_tile<3>(out + 3 * kLanes, sums_stride);
  }

  // Two tiles of rows, so that each tile of w that has been loaded serves twice.
  template <int kColumns>
  void two_tiles(std::ptrdiff_t row, std::ptrdiff_t height, std::ptrdiff_t first_column) const {
    const Element* left = x + row * x_stride;
    const Element* right = w + first_column * column;
    float* out = sums + row * sums_stride + first_column * kLanes;
    float* lower = out + height * sums_stride;
    begin_tile<0>(out);
    begin_tile<2>(lower);
    if constexpr (kColumns > 1) begin_tile<1>(out + kLanes);
    if constexpr (kColumns > 1) begin_tile<3>(lower + kLanes);
    for (std::ptrdiff_t i = 0; i < count; i += kTileSteps, left += kTileInputs, right += kTileSteps * step) {
      _tile_loadd(4, left, bytes(x_stride));
      _tile_loadd(6, right, bytes(step));
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, left + height * x_stride, bytes(x_stride));
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kColumns > 1) {
        _tile_loadd(7, right + column, bytes(step));
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    store_tile<0>(out, sums_stride);
    store_tile<2>(lower, sums_stride);
    if constexpr (kColumns > 1) store_tile<1>(out + kLanes, sums_stride);
    if constexpr (kColumns > 1) store_tile<3>(lower + kLanes, sums_stride);
  }

  void run(std::ptrdiff_t num_rows, std::ptrdiff_t num_columns) const {
    asm volatile("" ::: "memory");  // GCC 12 does not know that _tile_loadd reads what has just been stored
    const std::ptrdiff_t height = RowTiles(num_rows).height;
    std::ptrdiff_t row = 0;
    for (; row + 2 * height <= num_rows; row += 2 * height) {
      open(height);
      std::ptrdiff_t begin = 0;
      for (; begin + 2 <= num_columns; begin += 2) two_tiles<2>(row, height, begin);
      if (begin < num_columns) two_tiles<1>(row, height, begin);
    }
    for (; row < num_rows; row += height) {
      open(height < num_rows - row ? height : num_rows - row);
      std::ptrdiff_t begin = 0;
      for (; begin + 4 <= num_columns; begin += 4) tile<4>(row, begin);
      switch (num_columns - begin) {
        case 3: tile<3>(row, begin); break;
        case 2: tile<2>(row, begin); break;
        case 1: tile<1>(row, begin); break;
        default: break;
      }
    }
  }

 private:
  static void open(std::ptrdiff_t height) {
    if (height == open_height) return;
    open_tiles(height);
    open_height = height;
  }

  static std::ptrdiff_t bytes(std::ptrdiff_t stride) { return stride * static_cast<std::ptrdiff_t>(sizeof(Element)); }

  template <int kRegister>
  void begin_tile(const float* from) const {
    if (add)
      load_tile<kRegister>(from, sums_stride);
    else
      zero_tile<kRegister>();
  }
};

// The shape of a head decides, so that a row has the same bits wherever it stands.
inline void attend_in_tiles(const AttentionTask& task) {
  if (task.head_size % kTileInputs != 0) {
    Attention<CachedBfloat16>{task}.run();
    return;
  }
  Attention<TiledBfloat16>{task}.run();
  close_tiles();
  open_height = 0;
}

}  // namespace headstart::HEADSTART_ISA
