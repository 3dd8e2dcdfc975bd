// What a decoder stack computes beside its matrices: normalisation, rotary embedding, activation and attention.
//
// All of it is per row. Attention reads keys and values where the cache (cache.h) put them: positions in chunks, keys in panels of
// sixteen positions so that a panel is multiplied like a weight panel, values in pairs of positions (bfloat16) or one by one
// (float32). Rows of a draft lie in an area of their own until they are accepted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headstart {

constexpr int kPanelPositions = 16;   // keys of a panel
constexpr int kChunkPositions = 128;  // positions that a slot's cache grows by
constexpr int kMostBlock = 32;        // positions whose values any kernel adds at a time

// Where the keys and values of one slot, layer and key-value head lie.
struct KeyValues {
  const std::byte* const* chunks;  // one for each kChunkPositions positions
  std::size_t keys;                // offsets inside a chunk, in bytes
  std::size_t values;
  const std::byte* draft_keys;    // panels of draft rows
  const std::byte* draft_values;  // [draft row][head_size]
};

// What one row sees: positions [0, num_cached) of the cache, and behind them its ancestors in the draft area and itself.
struct VisibleRows {
  std::int32_t num_cached;
  std::int32_t num_drafted;
  const std::int32_t* drafted;  // rows of the draft area, by ascending depth
};

// Buffers of one worker; capacities are the caller's business. Q = rows * heads of a task.
struct AttentionScratch {
  void* queries;          // [Q][head_size], elements of the cache
  float* scores;          // [Q][stride]
  void* probabilities;    // [Q][stride], elements of the cache
  float* totals;          // [Q]: sums of the probabilities
  float* sums;            // [Q][head_size]
  float* draft_scores;    // [Q][draft_stride]
  void* gathered_values;  // [most drafted + 2 kMostBlock][head_size], elements of the cache
  std::ptrdiff_t stride;  // a multiple of 16 that holds the visible positions of any row, from a panel's border on
  std::ptrdiff_t draft_stride;
};

// Rows of one slot times query heads of one key-value head, so that keys and values are loaded once for all of them.
struct AttentionTask {
  KeyValues key_values;
  const VisibleRows* rows;
  std::int32_t num_rows;
  std::int32_t num_heads;
  std::int32_t head_size;  // a multiple of 16
  std::int32_t window;     // a row at position p sees keys > p - window; 0: all
  float scale;
  const void* queries;  // first row's first head, elements of the cache
  float* output;        // the same place in a float32 array of the same shape
  std::ptrdiff_t row_stride;
  AttentionScratch scratch;
};

struct StackKernels {
  // y = x / sqrt(mean(x^2) + epsilon) * weight; size is a multiple of 16.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::ptrdiff_t size, float* y);
  // Turns (head[i], head[i + half]) by the angle whose cosine and sine are given.
  void (*rotate)(float* head, const float* cosines, const float* sines, std::ptrdiff_t half);
  // up = gate * sigmoid(gate) * up; size is a multiple of 16.
  void (*swiglu)(const float* gate, float* up, std::ptrdiff_t size);
  // Rounds to bfloat16; size is a multiple of 16.
  void (*narrow)(const float* x, std::ptrdiff_t size, std::uint16_t* y);
  void (*attend_float32)(const AttentionTask& task);
  void (*attend_bfloat16)(const AttentionTask& task);
};

}  // namespace headstart
