// Sixteen lanes in two AVX2 registers (with FMA and F16C). portable.h defines what each function means.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/scalars.h"

namespace headstart::HEADSTART_ISA {

constexpr int kRowTile = 4;
constexpr int kPanelTile = 1;  // 8 of 16 registers hold sums

struct F {  // sixteen float32
  __m256 a, b;
};
struct I {  // sixteen int32
  __m256i a, b;
};
struct P {  // sixteen pairs of bfloat16
  __m256i a, b;
};
struct B {  // sixteen groups of four bytes
  __m256i a, b;
};

inline __m256i load_register(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F load_bf16(const std::uint16_t* p) {
  const __m256i x = load_register(p);
  const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x)), high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
}
inline __m256i narrowed(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), high = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_or_si256(high, _mm256_set1_epi32(0x40)), nan);
}
inline void store_bf16(std::uint16_t* p, F x) {
  const __m256i packed = _mm256_packus_epi32(narrowed(x.a), narrowed(x.b));  // within each 128 bits: quarters 0 2 1 3
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0b11011000));
}
inline void store_int8(std::int8_t* p, F x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));  // quarters 0 2 1 3
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0b11011000);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
inline F load_f16(const std::uint16_t* p) {
  const __m256i x = load_register(p);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}
inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F round_even(F x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline __m256 power_of_two(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F scale_by_power(F x, F n) { return {_mm256_mul_ps(x.a, power_of_two(n.a)), _mm256_mul_ps(x.b, power_of_two(n.b))}; }
inline F choose(F no, F yes, int n) {  // `yes` in the lanes below n
  const __m256i first = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32(n);
  const __m256 a = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, first));
  const __m256 b = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, _mm256_add_epi32(first, _mm256_set1_epi32(8))));
  return {_mm256_blendv_ps(no.a, yes.a, a), _mm256_blendv_ps(no.b, yes.b, b)};
}
inline F first_lanes(F x, int n, float fill) { return choose(set1(fill), x, n); }
inline F last_lanes(F x, int n, float fill) { return choose(x, set1(fill), n); }

inline float reduce_max(F x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float reduce_sum(F x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline P load_pairs(const std::uint16_t* p) { return {load_register(p), load_register(p + 16)}; }
inline P broadcast_pair(const std::uint16_t* p) {
  std::int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return {_mm256_set1_epi32(pair), _mm256_set1_epi32(pair)};
}
inline __m256 even(__m256i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
inline __m256 odd(__m256i x) {
  return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline F dot_pairs(F sum, P x, P y) {
  return {_mm256_fmadd_ps(odd(x.a), odd(y.a), _mm256_fmadd_ps(even(x.a), even(y.a), sum.a)),
          _mm256_fmadd_ps(odd(x.b), odd(y.b), _mm256_fmadd_ps(even(x.b), even(y.b), sum.b))};
}

inline B load_bytes(const std::uint8_t* p) { return {load_register(p), load_register(p + 32)}; }
inline B broadcast_bytes(const std::int8_t* p) {
  std::int32_t four;
  std::memcpy(&four, p, sizeof four);
  return {_mm256_set1_epi32(four), _mm256_set1_epi32(four)};
}
inline B low_nibbles(B x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
inline B high_nibbles(B x) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
inline I set1_int(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
// Products of 8-bit numbers fit 16 bits only as long as nobody adds two of them there, so they are widened first.
inline __m256i dot_register(__m256i sum, __m256i u, __m256i s) {
  const __m256i evens = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const __m256i odds = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(evens, odds));
}
inline I dot_bytes(I sum, B unsigned_bytes, B signed_bytes) {
  return {dot_register(sum.a, unsigned_bytes.a, signed_bytes.a), dot_register(sum.b, unsigned_bytes.b, signed_bytes.b)};
}
// Two products of a nibble and a byte do fit.
inline I dot_nibbles(I sum, B nibbles, B signed_bytes) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(_mm256_maddubs_epi16(nibbles.a, signed_bytes.a), ones)),
          _mm256_add_epi32(sum.b, _mm256_madd_epi16(_mm256_maddubs_epi16(nibbles.b, signed_bytes.b), ones))};
}
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

inline void store_normal_bf16(std::uint16_t* p, F x) { store_bf16(p, x); }

}  // namespace headstart::HEADSTART_ISA
