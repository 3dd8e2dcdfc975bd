// How fast the machine reads memory, which is the limit of every pass over few rows.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/kernels.h"
#include "memory.h"
#include "pool.h"
#include "unlocked.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Asks ahead where the products with few rows do.
std::uint64_t sum_of(const std::uint8_t* begin, const std::uint8_t* end, bool ask_ahead) {
  constexpr int kSums = 32;  // enough independent ones to keep the loads going
  std::uint64_t sums[kSums] = {}, words[kSums];
  for (; begin + sizeof words <= end; begin += sizeof words) {
    if (ask_ahead)
      for (std::size_t i = 0; i < sizeof words; i += 64) __builtin_prefetch(begin + kAhead + i, 0, 2);
    std::memcpy(words, begin, sizeof words);
    for (int i = 0; i < kSums; ++i) sums[i] += words[i];
  }
  std::uint64_t total = 0;
  for (const auto sum : sums) total += sum;
  return total;
}

std::vector<double> read_times(std::int64_t num_bytes, int repeats) {
  constexpr std::ptrdiff_t kChunk = 1 << 20;
  if (num_bytes < kChunk || num_bytes > (std::int64_t{1} << 40) || repeats < 1)
    throw std::invalid_argument("reading needs at least 1 MiB, at most 1 TiB, and one repeat");
  const Unlocked unlocked;
  const auto memory = allocate_in_huge_pages(static_cast<std::size_t>(num_bytes));
  std::fill_n(memory.get(), num_bytes, std::uint8_t{1});
  std::vector<double> times;
  std::atomic<std::uint64_t> total = 0;  // keeps the reads alive
  const bool ask_ahead = asks_ahead_for_few_rows();
  Pool& pool = Pool::instance();
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int) {
      pool.share(num_bytes, kChunk, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        total.fetch_add(sum_of(memory.get() + begin, memory.get() + end, ask_ahead), std::memory_order_relaxed);
      });
    });
    times.push_back(milliseconds_since(start));
  }
  return times;
}

}  // namespace

void bind_measure(nb::module_& module) {
  module.def("read_times", &read_times, nb::arg("num_bytes"), nb::arg("repeats"),
             "Milliseconds that all threads together take to read so many bytes from huge pages, for each repeat.");
}
