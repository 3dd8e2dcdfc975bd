// The two ends of every product: asking memory for weights, and writing outputs.
#pragma once

#include "kernels/linear_kernels.h"

namespace headstart::HEADSTART_ISA {

constexpr int kFirstCache = 3, kSecondCache = 2;

// Always inlined: GCC takes a function that only prefetches for one without effect, and drops calls of it.
template <int kCache>
[[gnu::always_inline]] inline void prefetch(const std::uint8_t* p, int num_bytes) {
  for (int i = 0; i < num_bytes; i += 64) __builtin_prefetch(p + i, 0, kCache);
}

// Adds a finished register of sums to its outputs. `count`: how many of the sixteen exist.
inline void finish(const LinearTask& task, std::int64_t row, int panel, F sum) {
  const int first = panel * kPanel, count = task.num_outputs - first;
  float* y = task.y + row * task.y_stride + first;
  if (count >= kPanel) {
    if (task.bias) sum = add(sum, load(task.bias + first));
    store(y, task.add ? add(load(y), sum) : sum);
    return;
  }
  float sums[kPanel];
  store(sums, sum);
  for (int i = 0; i < count; ++i) {
    const float value = task.bias ? sums[i] + task.bias[first + i] : sums[i];
    y[i] = task.add ? y[i] + value : value;
  }
}

}  // namespace headstart::HEADSTART_ISA
