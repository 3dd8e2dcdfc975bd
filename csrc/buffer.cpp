#include "buffer.h"

#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headstart {

namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kHugePage = std::size_t{1} << 21;

}  // namespace

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - kHugePage) throw std::bad_alloc();
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : kLine;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
  if (!memory_) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) madvise(memory_.get(), rounded, MADV_HUGEPAGE);  // refused: small pages, which work as well
#endif
  std::memset(memory_.get(), 0, rounded);
}

void Buffer::reserve(std::size_t bytes) {
  if (bytes > size_) *this = Buffer(bytes);
}

void Buffer::Free::operator()(std::byte* memory) const { std::free(memory); }

}  // namespace headstart
