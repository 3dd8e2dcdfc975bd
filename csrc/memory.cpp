#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>

#include "fork.h"

namespace headstart {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kMapping = std::size_t{32} << 20;  // only what is touched takes memory
constexpr std::size_t kAlignment = 64;

std::size_t round_up(std::size_t size, std::size_t unit) { return (size + unit - 1) / unit * unit; }

class Mapping {
 public:
  explicit Mapping(std::size_t size) : size_(size) {
    // mmap aligns to small pages; a huge page more leaves room to choose the border.
    length_ = size + kHugePage;
    start_ = mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start_ == MAP_FAILED) throw std::bad_alloc();
    begin_ = reinterpret_cast<std::uint8_t*>(round_up(reinterpret_cast<std::uintptr_t>(start_), kHugePage));
#if defined(MADV_HUGEPAGE)
    madvise(begin_, size_, MADV_HUGEPAGE);  // refused: small pages are slower, never wrong
#endif
  }
  ~Mapping() { munmap(start_, length_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  // The next `size` bytes, or null when they do not fit.
  std::uint8_t* take(std::size_t size) {
    if (size > size_ - used_) return nullptr;
    std::uint8_t* memory = begin_ + used_;
    used_ += size;
    return memory;
  }

 private:
  std::size_t size_, length_, used_ = 0;
  void* start_;
  std::uint8_t* begin_;
};

// Never destroyed, as the memory itself: threads may still be at work when the process exits.
ForkMutex& lock = *new ForkMutex;
std::weak_ptr<Mapping>& current = *new std::weak_ptr<Mapping>;

}  // namespace

std::shared_ptr<std::uint8_t[]> allocate_in_huge_pages(std::size_t num_bytes) {
  if (num_bytes > std::numeric_limits<std::ptrdiff_t>::max() / 2) throw std::bad_alloc();
  const std::size_t size = std::max(round_up(num_bytes, kAlignment), kAlignment);
  const std::lock_guard guard(lock);
  std::shared_ptr<Mapping> mapping = current.lock();
  std::uint8_t* memory = mapping ? mapping->take(size) : nullptr;
  if (!memory) {
    mapping = std::make_shared<Mapping>(std::max(round_up(size, kHugePage), kMapping));
    memory = mapping->take(size);
    current = mapping;
  }
  return {mapping, memory};
}

}  // namespace headstart
