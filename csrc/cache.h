// Keys and values of one slot, for all layers.
//
// Positions lie in chunks that are added as a sequence grows, so nothing is ever copied to make room. Inside a chunk, for each
// layer and key-value head, keys stand in panels of sixteen positions ([panel][head / step][16][step]: a panel is multiplied like
// a weight panel) and values in steps of positions ([position / step][head][step]), where a step is a pair for bfloat16 and one
// for float32 (kernels/stack_kernels.h).
//
// Rows that only extend the committed ones as a chain (prompts, plain steps, the first branch of a tree) are written where they
// belong at once. All others lie in a draft area with the same panels of keys and plain rows of values, until one path of them is
// accepted and moves behind the committed rows. What is not accepted is simply overwritten later.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "buffer.h"
#include "kernels/stack_kernels.h"

namespace headstart {

struct CacheShape {
  std::int64_t num_layers;
  std::int64_t num_kv_heads;
  std::int64_t head_size;
  std::int64_t element_bytes;  // 2: bfloat16, 4: float32

  std::size_t head_bytes(std::int64_t positions) const { return static_cast<std::size_t>(positions * head_size * element_bytes); }
  std::size_t bytes(std::int64_t positions) const {
    return 2 * static_cast<std::size_t>(num_layers * num_kv_heads) * head_bytes(positions);
  }
};

// Chunks that closed slots gave back, for the next ones: the system takes longer to hand out and clear pages than a fork takes to
// copy rows. What they held stays in them, as rejected drafts do in an open slot. Not thread-safe.
class ChunkShelf {
 public:
  ChunkShelf() { idle_.reserve(kMostChunks); }
  // All chunks of a shelf are of one size. std::bad_alloc
  Buffer take(std::size_t bytes);
  void give(Buffer chunk) noexcept;

 private:
  static constexpr std::size_t kMostChunks = 64, kMostBytes = std::size_t{64} << 20;

  std::vector<Buffer> idle_;
  std::size_t num_bytes_ = 0;
};

class SlotCache {
 public:
  // The shelf must outlive the cache.
  SlotCache(const CacheShape& shape, ChunkShelf& shelf) : shape_(shape), shelf_(shelf) {}
  ~SlotCache();
  SlotCache(const SlotCache&) = delete;
  SlotCache& operator=(const SlotCache&) = delete;

  // Room for positions [0, num_positions) and for so many rows of a draft. std::bad_alloc leaves everything as it was.
  void reserve(std::int64_t num_positions, std::int64_t num_draft_rows);

  // One row's key and value, `head_size` elements each.
  void write(std::int64_t layer, std::int64_t kv_head, std::int64_t position, const void* key, const void* value);
  void write_draft(std::int64_t layer, std::int64_t kv_head, std::int64_t draft_row, const void* key, const void* value);

  KeyValues view(std::int64_t layer, std::int64_t kv_head) const;

  // Copies rows of the draft area to positions from `position` on.
  void move(std::span<const std::int32_t> draft_rows, std::int64_t position);
  // A draft area larger than usual is given back.
  void release_draft();

  // The first `length` positions of another slot.
  void copy(const SlotCache& other, std::int64_t length);
  std::size_t num_bytes() const;

 private:
  std::size_t offset(std::int64_t layer, std::int64_t kv_head, std::int64_t positions) const;
  template <class Element>
  void move_rows(std::span<const std::int32_t> draft_rows, std::int64_t position);

  CacheShape shape_;
  ChunkShelf& shelf_;
  std::vector<Buffer> chunks_;
  std::vector<const std::byte*> addresses_;  // of the chunks, as kernels want them
  Buffer draft_;
  std::int64_t draft_rows_ = 0;  // that the draft area holds
};

}  // namespace headstart
