// What a machine can do at most, and how near the packed matrices come to it: without Python or a model in between.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "linear.h"
#include "memory.h"
#include "pool.h"

namespace nb = nanobind;
using namespace headstart;

namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

std::uint64_t sum_of(const std::uint8_t* begin, const std::uint8_t* end) {
  constexpr int kSums = 32;  // enough independent ones to keep the loads going
  std::uint64_t sums[kSums] = {}, words[kSums];
  for (; begin + sizeof words <= end; begin += sizeof words) {
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
  const nb::gil_scoped_release unlocked;
  const auto memory = allocate_in_huge_pages(static_cast<std::size_t>(num_bytes));
  std::fill_n(memory.get(), num_bytes, std::uint8_t{1});
  std::vector<double> times;
  std::atomic<std::uint64_t> total = 0;  // keeps the reads alive
  Pool& pool = Pool::instance();
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int) {
      pool.share(num_bytes, kChunk, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        total.fetch_add(sum_of(memory.get() + begin, memory.get() + end), std::memory_order_relaxed);
      });
    });
    times.push_back(milliseconds_since(start));
  }
  return times;
}

std::shared_ptr<std::uint8_t[]> prepared_rows(const Linear& matrix, std::int64_t num_rows) {
  const std::vector<float> x(static_cast<std::size_t>(matrix.inputs()), 0.5f);
  auto rows = allocate_in_huge_pages(static_cast<std::size_t>(num_rows) * matrix.prepared_bytes());
  for (std::int64_t row = 0; row < num_rows; ++row)
    matrix.prepare(x.data(), rows.get() + static_cast<std::size_t>(row) * matrix.prepared_bytes());
  return rows;
}

std::vector<double> product_times(const std::vector<const Linear*>& matrices, std::int64_t num_rows, int repeats) {
  if (matrices.empty() || num_rows < 1 || num_rows > 65536 || repeats < 1)
    throw std::invalid_argument("products need a matrix, 1 to 65536 rows and a repeat");
  const nb::gil_scoped_release unlocked;
  std::int64_t widest_output = 0;
  std::map<std::pair<Activation, std::int64_t>, std::shared_ptr<std::uint8_t[]>> prepared;
  for (const Linear* matrix : matrices) {
    widest_output = std::max(widest_output, matrix->outputs());
    auto& rows = prepared[{matrix->activation(), matrix->inputs()}];
    if (!rows) rows = prepared_rows(*matrix, num_rows);
  }
  const auto y = allocate_in_huge_pages(static_cast<std::size_t>(num_rows * widest_output * 4));
  Pool& pool = Pool::instance();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int) {
      for (const Linear* matrix : matrices) {
        const std::uint8_t* rows = prepared.at({matrix->activation(), matrix->inputs()}).get();
        const std::int64_t chunk = std::max<std::int64_t>(1, matrix->num_groups() / (4 * pool.num_threads()));
        pool.share(matrix->num_groups(), chunk, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
          matrix->apply(rows, num_rows, begin, end, reinterpret_cast<float*>(y.get()), matrix->outputs(), nullptr, false);
        });
      }
    });
    times.push_back(milliseconds_since(start));
  }
  return times;
}

}  // namespace

void bind_measure(nb::module_& module) {
  module.def("read_times", &read_times, nb::arg("num_bytes"), nb::arg("repeats"),
             "Milliseconds that all threads together take to read so many bytes from huge pages, for each repeat.");
  module.def("product_times", &product_times, nb::arg("matrices"), nb::arg("num_rows"), nb::arg("repeats"),
             "Milliseconds that one pass of prepared rows over all matrices takes, for each repeat.");
}
