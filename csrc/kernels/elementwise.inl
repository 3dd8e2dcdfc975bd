// Normalisation, rotary embedding, activation, rounding: element by element, sixteen lanes at a time.

#include "kernels/stack_kernels.h"

namespace headstart::HEADSTART_ISA {

// e^x for x in [-87, 88] (clamped), NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and Taylor's series of e^r up to r^7, whose
// next term is below 6e-9. ln 2 is split in two so that n times its first part is exact.
inline F exponential(F x) {
  x = min(set1(88.0f), max(set1(-87.0f), x));  // in this order NaN passes both
  const F n = min(max(round_even(mul(x, set1(0x1.715476p+0f))), set1(-126.0f)), set1(127.0f));
  const F r = fma(n, set1(-0x1.7f7d1cp-20f), fma(n, set1(-0x1.62e4p-1f), x));
  F sum = set1(1.0f / 5040);
  sum = fma(sum, r, set1(1.0f / 720));
  sum = fma(sum, r, set1(1.0f / 120));
  sum = fma(sum, r, set1(1.0f / 24));
  sum = fma(sum, r, set1(1.0f / 6));
  sum = fma(sum, r, set1(0.5f));
  sum = fma(sum, r, set1(1.0f));
  sum = fma(sum, r, set1(1.0f));
  return scale_by_power(sum, n);
}

inline void rms_norm(const float* x, const float* weight, float epsilon, std::ptrdiff_t size, float* y) {
  F squares = zero();
  for (std::ptrdiff_t i = 0; i < size; i += kLanes) {
    const F value = load(x + i);
    squares = fma(value, value, squares);
  }
  const F scale = set1(1.0f / __builtin_sqrtf(reduce_sum(squares) / static_cast<float>(size) + epsilon));
  for (std::ptrdiff_t i = 0; i < size; i += kLanes) store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
}

inline void rotate(float* head, const float* cosines, const float* sines, std::ptrdiff_t half) {
  for (std::ptrdiff_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half] = b * cosines[i] + a * sines[i];
  }
}

inline void swiglu(const float* gate, float* up, std::ptrdiff_t size) {
  for (std::ptrdiff_t i = 0; i < size; i += kLanes) {
    const F g = load(gate + i);
    const F activated = div(g, add(set1(1.0f), exponential(sub(zero(), g))));
    store(up + i, mul(activated, load(up + i)));
  }
}

inline void narrow_all(const float* x, std::ptrdiff_t size, std::uint16_t* y) {
  for (std::ptrdiff_t i = 0; i < size; i += kLanes) store_bf16(y + i, load(x + i));
}

}  // namespace headstart::HEADSTART_ISA
