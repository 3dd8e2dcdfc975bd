// Scalar conversions, the same for every instruction set (each compiles its own copy, inside its own namespace).
#pragma once

#include <bit>
#include <cstdint>

namespace headstart::HEADSTART_ISA {

constexpr int kLanes = 16;

inline float widen(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

// To nearest, ties to even; NaN stays NaN.
inline std::uint16_t narrow(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float widen_half(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000u) << 16, exponent = (x >> 10) & 31u, fraction = x & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

}  // namespace headstart::HEADSTART_ISA
