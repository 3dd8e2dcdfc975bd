// AVX-512 (F, BW, DQ, VL) without bfloat16 and VNNI: pairs are widened by shifts, bytes by sixteen-bit products.
#pragma once

#include "simd/avx512_lanes.h"

namespace headstart::HEADSTART_ISA {

constexpr int kRowTile = 8;
constexpr int kPanelTile = 2;

inline __m512 even(P x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x.v, 16)); }
inline __m512 odd(P x) { return _mm512_castsi512_ps(_mm512_and_si512(x.v, _mm512_set1_epi32(static_cast<int>(0xffff0000u)))); }
inline F dot_pairs(F sum, P a, P b) {
  return {_mm512_fmadd_ps(odd(a), odd(b), _mm512_fmadd_ps(even(a), even(b), sum.v))};
}

// Products of 8-bit numbers fit 16 bits only as long as nobody adds two of them there, so they are widened first.
inline I dot_bytes(I sum, B unsigned_bytes, B signed_bytes) {
  const __m512i u = unsigned_bytes.v, s = signed_bytes.v;
  const __m512i evens = _mm512_madd_epi16(_mm512_and_si512(u, _mm512_set1_epi16(255)), _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8));
  const __m512i odds = _mm512_madd_epi16(_mm512_srli_epi16(u, 8), _mm512_srai_epi16(s, 8));
  return {_mm512_add_epi32(sum.v, _mm512_add_epi32(evens, odds))};
}
// Two products of a nibble and a byte do fit.
inline I dot_nibbles(I sum, B nibbles, B signed_bytes) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(_mm512_maddubs_epi16(nibbles.v, signed_bytes.v), _mm512_set1_epi16(1)))};
}

inline void store_normal_bf16(std::uint16_t* p, F x) { store_bf16(p, x); }

}  // namespace headstart::HEADSTART_ISA
