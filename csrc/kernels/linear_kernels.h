// The seam between a packed matrix (linear.h) and the loops over it (linear.inl).
//
// A panel is sixteen outputs, one for each lane. A *step* of the dot product is one 64-byte register of a panel: one float32 input, or
// two bfloat16 inputs; for byte kinds it is a block of 32 inputs. Several panels form a group, which one register tile works through
// at once, so the panels of a group lie step by step side by side: [step][panel][64 bytes]. Byte kinds have groups of one panel, and a
// step is sixteen scales (and minima), then [4 of the 32 bytes or 8 of the 32 nibbles][16 outputs]. So a group is one stream from end to
// end, which is what the hardware's prefetchers want: two streams of a few kilobytes each take twice the time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headstart {

constexpr int kPanel = 16;        // outputs
constexpr int kBlock = 32;        // inputs that share a scale
constexpr int kBlockRegisters = kBlock / 4;

constexpr std::ptrdiff_t kAhead = 8192;  // how far from the weights at hand lie those that a kernel asks memory for, in bytes

// How a row of activations is handed to the kernels.
enum class Activation : std::uint8_t { float32, bfloat16, bytes };

// A block of activations in the byte format: x is about scale * values. The starts are what the int32 sums of a block begin with, so
// that weights which are stored with an offset (128 or 8) count without it.
struct ActivationBlock {
  std::int8_t values[kBlock];
  float scale;
  float scaled_sum;  // scale * sum of values
  std::int32_t start_128;
  std::int32_t start_8;
};
static_assert(sizeof(ActivationBlock) == 48);

// The product of one group with all rows.
struct LinearTask {
  const std::uint8_t* weights;
  std::int64_t num_steps;
  int num_panels;   // in this group
  int num_outputs;  // in this group; the last panel may be only partly used
  const std::uint8_t* prepared;
  std::ptrdiff_t prepared_stride;
  std::int64_t num_rows;
  float* y;  // of row 0 and the group's first output
  std::ptrdiff_t y_stride;
  const float* bias;  // of the group's first output, or null
  bool add;
  bool ask_ahead;  // also in tiles of few rows
};

// Products on the processor's tile unit. A matrix goes through it with any number of rows or with none, as the order of its sums is
// another one: a bfloat16 matrix does where its inputs are a multiple of kTileInputs.
struct TileKernels {
  int panels_in_group;
  // Around a thread's products with so many rows. Tiles that stay open would be saved at each change of threads.
  void (*open)(std::int64_t num_rows);
  void (*close)();
  void (*bfloat16)(const LinearTask&);
};
constexpr std::int64_t kTileInputs = 32;

struct LinearKernels {
  int panels_in_group;       // for float32 and bfloat16
  const TileKernels* tiles;  // null without a tile unit

  void (*float32)(const LinearTask&);
  void (*bfloat16)(const LinearTask&);
  void (*q8_0)(const LinearTask&);
  void (*q4_0)(const LinearTask&);
  void (*q4_1)(const LinearTask&);

  // One row into the activation format. `prepared` is aligned to 64 bytes; an odd count is padded with a zero.
  void (*prepare_bfloat16)(const float* x, std::int64_t count, std::uint16_t* prepared);
  void (*prepare_bytes)(const float* x, std::int64_t num_blocks, ActivationBlock* prepared);
};

}  // namespace headstart
