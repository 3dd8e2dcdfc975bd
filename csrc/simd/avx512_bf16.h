// AVX-512 with bfloat16 (vdpbf16ps: two products and two sums a lane) and VNNI (vpdpbusd: four).
#pragma once

#include "simd/avx512_lanes.h"

namespace headstart::HEADSTART_ISA {

constexpr int kRowTile = 8;
constexpr int kPanelTile = 3;  // 24 sums, 3 weights, 1 input: 28 of 32 registers

inline void store_normal_bf16(std::uint16_t* p, F x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), std::bit_cast<__m256i>(_mm512_cvtneps_pbh(x.v)));
}
inline F dot_pairs(F sum, P a, P b) {
  return {_mm512_dpbf16_ps(sum.v, std::bit_cast<__m512bh>(a.v), std::bit_cast<__m512bh>(b.v))};
}
inline I dot_bytes(I sum, B unsigned_bytes, B signed_bytes) {
  return {_mm512_dpbusd_epi32(sum.v, unsigned_bytes.v, signed_bytes.v)};
}
inline I dot_nibbles(I sum, B nibbles, B signed_bytes) { return dot_bytes(sum, nibbles, signed_bytes); }

}  // namespace headstart::HEADSTART_ISA
