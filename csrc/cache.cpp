#include "cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace headstart {

namespace {

constexpr std::int64_t kUsualDraftRows = 64;

// Where one head's keys or values lie, and how elements of a row are spread there.
template <class Element>
struct Layout {
  static constexpr std::int64_t kStep = sizeof(Element) == 2 ? 2 : 1;
  std::int64_t head_size;

  std::int64_t key(std::int64_t row, std::int64_t i) const {
    return row / kPanelPositions * kPanelPositions * head_size + i / kStep * kStep * kPanelPositions +
           row % kPanelPositions * kStep + i % kStep;
  }
  std::int64_t value(std::int64_t row, std::int64_t i) const { return row / kStep * kStep * head_size + i * kStep + row % kStep; }

  void write_key(Element* keys, std::int64_t row, const Element* key_row) const {
    for (std::int64_t i = 0; i < head_size; i += kStep)
      std::memcpy(keys + key(row, i), key_row + i, kStep * sizeof(Element));
  }
  void write_value(Element* values, std::int64_t row, const Element* value_row) const {
    Element* to = values + value(row, 0);
    for (std::int64_t i = 0; i < head_size; ++i) to[i * kStep] = value_row[i];
  }
};

template <class Element>
void write_row(std::int64_t head_size, std::byte* keys, std::byte* values, std::int64_t row, const void* key, const void* value) {
  const Layout<Element> layout{head_size};
  layout.write_key(reinterpret_cast<Element*>(keys), row, static_cast<const Element*>(key));
  layout.write_value(reinterpret_cast<Element*>(values), row, static_cast<const Element*>(value));
}

}  // namespace

Buffer ChunkShelf::take(std::size_t bytes) {
  if (idle_.empty()) return Buffer(bytes);
  Buffer chunk = std::move(idle_.back());
  idle_.pop_back();
  num_bytes_ -= chunk.size();
  return chunk;
}

void ChunkShelf::give(Buffer chunk) noexcept {
  if (idle_.size() == kMostChunks || num_bytes_ + chunk.size() > kMostBytes) return;
  num_bytes_ += chunk.size();
  idle_.push_back(std::move(chunk));
}

SlotCache::~SlotCache() {
  for (Buffer& chunk : chunks_) shelf_.give(std::move(chunk));
}

std::size_t SlotCache::offset(std::int64_t layer, std::int64_t kv_head, std::int64_t positions) const {
  return 2 * static_cast<std::size_t>(layer * shape_.num_kv_heads + kv_head) * shape_.head_bytes(positions);
}

void SlotCache::reserve(std::int64_t num_positions, std::int64_t num_draft_rows) {
  const auto num_chunks = static_cast<std::size_t>((num_positions + kChunkPositions - 1) / kChunkPositions);
  chunks_.reserve(num_chunks);
  addresses_.reserve(num_chunks);
  while (chunks_.size() < num_chunks) {
    chunks_.push_back(shelf_.take(shape_.bytes(kChunkPositions)));
    addresses_.push_back(chunks_.back().data());
  }
  if (num_draft_rows <= draft_rows_) return;
  const std::int64_t rows = (num_draft_rows + kPanelPositions - 1) / kPanelPositions * kPanelPositions;
  draft_ = Buffer(shape_.bytes(rows));
  draft_rows_ = rows;
}

void SlotCache::write(std::int64_t layer, std::int64_t kv_head, std::int64_t position, const void* key, const void* value) {
  std::byte* keys = chunks_[static_cast<std::size_t>(position / kChunkPositions)].data() + offset(layer, kv_head, kChunkPositions);
  std::byte* values = keys + shape_.head_bytes(kChunkPositions);
  const auto write = shape_.element_bytes == 2 ? write_row<std::uint16_t> : write_row<float>;
  write(shape_.head_size, keys, values, position % kChunkPositions, key, value);
}

void SlotCache::write_draft(std::int64_t layer, std::int64_t kv_head, std::int64_t draft_row, const void* key, const void* value) {
  std::byte* keys = draft_.data() + offset(layer, kv_head, draft_rows_);
  std::byte* values = keys + shape_.head_bytes(draft_rows_);
  if (shape_.element_bytes == 2)
    Layout<std::uint16_t>{shape_.head_size}.write_key(reinterpret_cast<std::uint16_t*>(keys), draft_row,
                                                      static_cast<const std::uint16_t*>(key));
  else
    Layout<float>{shape_.head_size}.write_key(reinterpret_cast<float*>(keys), draft_row, static_cast<const float*>(key));
  std::memcpy(values + shape_.head_bytes(draft_row), value, shape_.head_bytes(1));
}

KeyValues SlotCache::view(std::int64_t layer, std::int64_t kv_head) const {
  const std::size_t keys = offset(layer, kv_head, kChunkPositions);
  const std::byte* draft_keys = draft_.data() ? draft_.data() + offset(layer, kv_head, draft_rows_) : nullptr;
  const std::byte* draft_values = draft_keys ? draft_keys + shape_.head_bytes(draft_rows_) : nullptr;
  return {addresses_.data(), keys, keys + shape_.head_bytes(kChunkPositions), draft_keys, draft_values};
}

template <class Element>
void SlotCache::move_rows(std::span<const std::int32_t> draft_rows, std::int64_t position) {
  const Layout<Element> layout{shape_.head_size};
  std::vector<Element> key(static_cast<std::size_t>(shape_.head_size));
  for (std::int64_t layer = 0; layer < shape_.num_layers; ++layer) {
    for (std::int64_t head = 0; head < shape_.num_kv_heads; ++head) {
      const KeyValues from = view(layer, head);
      for (std::size_t i = 0; i < draft_rows.size(); ++i) {
        const Element* keys = reinterpret_cast<const Element*>(from.draft_keys);
        const std::byte* value = from.draft_values + shape_.head_bytes(draft_rows[i]);
        for (std::int64_t j = 0; j < shape_.head_size; ++j) key[static_cast<std::size_t>(j)] = keys[layout.key(draft_rows[i], j)];
        write(layer, head, position + static_cast<std::int64_t>(i), key.data(), value);
      }
    }
  }
}

void SlotCache::move(std::span<const std::int32_t> draft_rows, std::int64_t position) {
  if (draft_rows.empty()) return;
  reserve(position + static_cast<std::int64_t>(draft_rows.size()), 0);
  if (shape_.element_bytes == 2)
    move_rows<std::uint16_t>(draft_rows, position);
  else
    move_rows<float>(draft_rows, position);
}

void SlotCache::release_draft() {
  if (draft_rows_ <= kUsualDraftRows) return;
  draft_ = Buffer();
  draft_rows_ = 0;
}

void SlotCache::copy(const SlotCache& other, std::int64_t length) {
  reserve(length, 0);
  const auto num_whole = static_cast<std::size_t>(length / kChunkPositions);
  for (std::size_t i = 0; i < num_whole; ++i) std::memcpy(chunks_[i].data(), other.chunks_[i].data(), chunks_[i].size());
  const std::int64_t rest = (length % kChunkPositions + kPanelPositions - 1) / kPanelPositions * kPanelPositions;
  if (rest == 0) return;
  const std::size_t half = shape_.head_bytes(kChunkPositions);  // keys, then values: both lie by ascending positions
  for (std::size_t start = 0; start < shape_.bytes(kChunkPositions); start += half)
    std::memcpy(chunks_[num_whole].data() + start, other.chunks_[num_whole].data() + start, shape_.head_bytes(rest));
}

std::size_t SlotCache::num_bytes() const { return chunks_.size() * shape_.bytes(kChunkPositions) + draft_.size(); }

}  // namespace headstart
