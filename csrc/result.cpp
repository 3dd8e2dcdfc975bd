#include "result.h"

#include <algorithm>
#include <utility>

namespace headstart {

namespace {

constexpr std::size_t kMostBuffers = 4;
constexpr std::int64_t kLine = 16;  // floats, so that every array begins on a cache line

std::int64_t whole_lines(std::int64_t floats) { return (floats + kLine - 1) / kLine * kLine; }

}  // namespace

Buffer Shelf::take(std::size_t bytes) {
  {
    const std::lock_guard guard(lock_);
    const auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& buffer) { return buffer.size() >= bytes; });
    if (found != buffers_.end()) {
      Buffer buffer = std::move(*found);
      buffers_.erase(found);
      return buffer;
    }
  }
  return Buffer(bytes);
}

// Keeps the largest.
void Shelf::give(Buffer buffer) {
  const std::lock_guard guard(lock_);
  buffers_.push_back(std::move(buffer));
  if (buffers_.size() <= kMostBuffers) return;
  const auto smaller = [](const Buffer& a, const Buffer& b) { return a.size() < b.size(); };
  buffers_.erase(std::min_element(buffers_.begin(), buffers_.end(), smaller));
}

Result::Result(std::shared_ptr<Shelf> shelf, std::int64_t rows, std::int64_t vocabulary, std::int64_t stride, std::int64_t hidden,
               std::int64_t every_row, std::int64_t watched)
    : num_rows(rows),
      vocab_size(vocabulary),
      logits_stride(stride),
      hidden_size(hidden),
      all_rows(every_row),
      state_size(watched),
      shelf_(std::move(shelf)),
      hidden_offset_(whole_lines(rows * stride)),
      states_offset_(hidden_offset_ + whole_lines(rows * hidden)),
      memory_(shelf_->take(static_cast<std::size_t>(states_offset_ + every_row * watched) * sizeof(float))) {}

Result::~Result() { shelf_->give(std::move(memory_)); }

}  // namespace headstart
