// Sixteen lanes in plain C++: the definition of what every instruction set has to offer.
//
// Kernels (kernels/*.inl) are written once over these types and compiled once an instruction set, each time inside a namespace
// of its own (HEADSTART_ISA), because two translation units that are compiled with different flags must not share an inline
// function. Sums have one fixed order within an instruction set; between two of them the last bits may differ.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/scalars.h"

namespace headstart::HEADSTART_ISA {

// Register tile of the matrix kernels: rows of activations times panels of sixteen outputs.
constexpr int kRowTile = 4;
constexpr int kPanelTile = 1;

struct F {  // sixteen float32
  float v[kLanes];
};
struct I {  // sixteen int32
  std::int32_t v[kLanes];
};
struct P {  // sixteen pairs of bfloat16
  std::uint16_t v[2 * kLanes];
};
struct B {  // sixteen groups of four bytes
  std::uint8_t v[4 * kLanes];
};

#define HEADSTART_EACH for (int i = 0; i < kLanes; ++i)

inline F set1(float x) { F r; HEADSTART_EACH r.v[i] = x; return r; }
inline F zero() { return set1(0.0f); }
inline F load(const float* p) { F r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline F load_bf16(const std::uint16_t* p) { F r; HEADSTART_EACH r.v[i] = widen(p[i]); return r; }
inline void store_bf16(std::uint16_t* p, F x) { HEADSTART_EACH p[i] = narrow(x.v[i]); }
// Whole numbers as signed bytes; beyond +-127 (or NaN) any byte may come.
inline void store_int8(std::int8_t* p, F x) {
  HEADSTART_EACH p[i] = x.v[i] >= -127.0f && x.v[i] <= 127.0f ? static_cast<std::int8_t>(x.v[i]) : std::int8_t{0};
}
inline F load_f16(const std::uint16_t* p) { F r; HEADSTART_EACH r.v[i] = widen_half(p[i]); return r; }
inline F add(F a, F b) { HEADSTART_EACH a.v[i] += b.v[i]; return a; }
inline F sub(F a, F b) { HEADSTART_EACH a.v[i] -= b.v[i]; return a; }
inline F mul(F a, F b) { HEADSTART_EACH a.v[i] *= b.v[i]; return a; }
inline F div(F a, F b) { HEADSTART_EACH a.v[i] /= b.v[i]; return a; }
inline F max(F a, F b) { HEADSTART_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F min(F a, F b) { HEADSTART_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
inline F fma(F a, F b, F c) { HEADSTART_EACH c.v[i] += a.v[i] * b.v[i]; return c; }  // a * b + c, fused where the hardware fuses
inline F round_even(F a) { HEADSTART_EACH a.v[i] = std::nearbyint(a.v[i]); return a; }
// x * 2^n for whole n in [-126, 127]
inline F scale_by_power(F x, F n) {
  HEADSTART_EACH x.v[i] *= std::bit_cast<float>((static_cast<std::int32_t>(n.v[i]) + 127) << 23);
  return x;
}
// Lanes n and above become `fill`.
inline F first_lanes(F x, int n, float fill) { HEADSTART_EACH x.v[i] = i < n ? x.v[i] : fill; return x; }
// Lanes below n become `fill`.
inline F last_lanes(F x, int n, float fill) { HEADSTART_EACH x.v[i] = i >= n ? x.v[i] : fill; return x; }

inline float reduce_max(F a) {
  float best = a.v[0];
  for (int i = 1; i < kLanes; ++i) best = a.v[i] > best ? a.v[i] : best;
  return best;
}
// Halves onto halves: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
inline float reduce_sum(F a) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}

// Pairs of bfloat16: the products of a lane's two inputs are added to its float32 sum.
inline P load_pairs(const std::uint16_t* p) { P r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline P broadcast_pair(const std::uint16_t* p) {
  P r;
  HEADSTART_EACH { r.v[2 * i] = p[0]; r.v[2 * i + 1] = p[1]; }
  return r;
}
inline F dot_pairs(F sum, P a, P b) {
  HEADSTART_EACH {
    sum.v[i] += widen(a.v[2 * i]) * widen(b.v[2 * i]);
    sum.v[i] += widen(a.v[2 * i + 1]) * widen(b.v[2 * i + 1]);
  }
  return sum;
}

// Bytes in groups of four: unsigned times signed, added exactly to a lane's int32 sum.
inline B load_bytes(const std::uint8_t* p) { B r; std::memcpy(r.v, p, sizeof r.v); return r; }
inline B broadcast_bytes(const std::int8_t* p) {
  B r;
  HEADSTART_EACH std::memcpy(r.v + 4 * i, p, 4);
  return r;
}
inline B low_nibbles(B x) { for (auto& byte : x.v) byte &= 15; return x; }
inline B high_nibbles(B x) { for (auto& byte : x.v) byte >>= 4; return x; }
inline I set1_int(std::int32_t x) { I r; HEADSTART_EACH r.v[i] = x; return r; }
inline I dot_bytes(I sum, B unsigned_bytes, B signed_bytes) {
  HEADSTART_EACH for (int j = 4 * i; j < 4 * i + 4; ++j)
    sum.v[i] += static_cast<std::int32_t>(unsigned_bytes.v[j]) * static_cast<std::int8_t>(signed_bytes.v[j]);
  return sum;
}
// The same where the unsigned bytes are below 16, which is cheaper for some.
inline I dot_nibbles(I sum, B nibbles, B signed_bytes) { return dot_bytes(sum, nibbles, signed_bytes); }
inline F to_float(I x) { F r; HEADSTART_EACH r.v[i] = static_cast<float>(x.v[i]); return r; }

#undef HEADSTART_EACH

inline void store_normal_bf16(std::uint16_t* p, F x) { store_bf16(p, x); }

}  // namespace headstart::HEADSTART_ISA
