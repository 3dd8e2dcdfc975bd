// Sixteen lanes in one AVX-512 register: what the instruction sets with and without bfloat16 and VNNI have in common.
// portable.h defines what each function means.
#pragma once

#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "simd/scalars.h"

namespace headstart::HEADSTART_ISA {

struct F {  // sixteen float32
  __m512 v;
};
struct I {  // sixteen int32
  __m512i v;
};
struct P {  // sixteen pairs of bfloat16
  __m512i v;
};
struct B {  // sixteen groups of four bytes
  __m512i v;
};

inline F set1(float x) { return {_mm512_set1_ps(x)}; }
inline F zero() { return {_mm512_setzero_ps()}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline F load_bf16(const std::uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
// In integers: the hardware's own conversion would flush subnormal numbers, which the scalar `narrow` keeps.
inline void store_bf16(std::uint16_t* p, F x) {
  const __m512i bits = _mm512_castps_si512(x.v), high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  __m512i result = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  result = _mm512_mask_or_epi32(result, nan, high, _mm512_set1_epi32(0x40));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(result));
}
inline void store_int8(std::int8_t* p, F x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
inline F load_f16(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F round_even(F a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F scale_by_power(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }
inline __mmask16 below(int n) {
  return static_cast<__mmask16>(n <= 0 ? 0u : n >= 16 ? 0xffffu : (1u << n) - 1u);
}
inline F first_lanes(F x, int n, float fill) { return {_mm512_mask_blend_ps(below(n), _mm512_set1_ps(fill), x.v)}; }
inline F last_lanes(F x, int n, float fill) { return {_mm512_mask_blend_ps(below(n), x.v, _mm512_set1_ps(fill))}; }

inline __m256 low_half(__m512 x) { return _mm512_castps512_ps256(x); }
inline __m256 high_half(__m512 x) { return _mm512_extractf32x8_ps(x, 1); }
inline float reduce_max(F a) {
  const __m256 eight = _mm256_max_ps(low_half(a.v), high_half(a.v));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_sum(F a) {
  const __m256 eight = _mm256_add_ps(low_half(a.v), high_half(a.v));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline P load_pairs(const std::uint16_t* p) { return {_mm512_loadu_si512(p)}; }
inline P broadcast_pair(const std::uint16_t* p) {
  std::int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return {_mm512_set1_epi32(pair)};
}

inline B load_bytes(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline B broadcast_bytes(const std::int8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, sizeof four);
  return {_mm512_set1_epi32(four)};
}
inline B low_nibbles(B x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
inline B high_nibbles(B x) { return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))}; }
inline I set1_int(std::int32_t x) { return {_mm512_set1_epi32(x)}; }
inline F to_float(I x) { return {_mm512_cvtepi32_ps(x.v)}; }

}  // namespace headstart::HEADSTART_ISA
