#include "formats.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/linear_kernels.h"

namespace headstart {

namespace {

struct Format {
  std::string_view name;
  std::int64_t weights_in_unit;
  std::size_t unit_bytes;
};

constexpr std::array<Format, 6> kFormats = {{
    {"float32", 1, 4}, {"float16", 1, 2}, {"bfloat16", 1, 2}, {"q8_0", kBlock, 34}, {"q4_0", kBlock, 18}, {"q4_1", kBlock, 20},
}};

const Format& format(SourceKind kind) { return kFormats[static_cast<std::size_t>(kind)]; }

template <class Number>
Number read(const std::uint8_t* p) {
  Number value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

void decode_block(SourceKind kind, const std::uint8_t* block, float* values) {
  const float scale = from_float16(read<std::uint16_t>(block));
  if (kind == SourceKind::q8_0) {
    for (int i = 0; i < kBlock; ++i) values[i] = scale * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
    return;
  }
  const bool has_minimum = kind == SourceKind::q4_1;
  const float minimum = has_minimum ? from_float16(read<std::uint16_t>(block + 2)) : 0.0f;
  const std::uint8_t* nibbles = block + (has_minimum ? 4 : 2);
  const int offset = has_minimum ? 0 : 8;
  for (int i = 0; i < kBlock / 2; ++i) {
    values[i] = scale * static_cast<float>((nibbles[i] & 15) - offset) + minimum;
    values[i + kBlock / 2] = scale * static_cast<float>((nibbles[i] >> 4) - offset) + minimum;
  }
}

void encode_q8_block(const float* values, std::uint8_t* block) {
  float largest = 0.0f;
  for (int i = 0; i < kBlock; ++i) {
    if (!std::isfinite(values[i])) throw std::invalid_argument("a weight is infinite or not a number; q8_0 cannot hold it");
    largest = std::max(largest, std::fabs(values[i]));
  }
  const std::uint16_t half = to_float16(largest / 127.0f);
  const float scale = from_float16(half);
  if (!std::isfinite(scale)) throw std::invalid_argument("a weight is too large for q8_0, whose scales are float16; use bfloat16");
  std::memcpy(block, &half, sizeof half);
  for (int i = 0; i < kBlock; ++i) {
    const float quotient = scale > 0.0f ? std::nearbyint(values[i] / scale) : 0.0f;
    block[2 + i] = static_cast<std::uint8_t>(static_cast<std::int8_t>(std::clamp(quotient, -127.0f, 127.0f)));
  }
}

}  // namespace

SourceKind source_kind_named(std::string_view name) {
  std::string valid;
  for (std::size_t i = 0; i < kFormats.size(); ++i) {
    if (kFormats[i].name == name) return static_cast<SourceKind>(i);
    valid += (valid.empty() ? "" : ", ") + std::string(kFormats[i].name);
  }
  throw std::invalid_argument("unknown kind of weights '" + std::string(name) + "'; known: " + valid);
}

std::string_view name_of(SourceKind kind) { return format(kind).name; }

std::size_t row_bytes(SourceKind kind, std::int64_t inputs) {
  const auto [name, weights, bytes] = format(kind);
  if (inputs < 1 || inputs % weights != 0)
    throw std::invalid_argument("a row of " + std::string(name) + " cannot have " + std::to_string(inputs) + " inputs" +
                                (weights > 1 ? "; it takes a multiple of " + std::to_string(weights) : ""));
  std::size_t total;
  if (__builtin_mul_overflow(static_cast<std::size_t>(inputs / weights), bytes, &total))
    throw std::invalid_argument("a row of " + std::to_string(inputs) + " inputs is too large");
  return total;
}

float from_bfloat16(std::uint16_t x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16); }

std::uint16_t to_bfloat16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_float16(std::uint16_t x) {
  const std::uint32_t sign = (x & 0x8000u) << 16, exponent = (x >> 10) & 31u, fraction = x & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent == 0) return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

std::uint16_t to_float16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  const float size = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00u;
  if (size >= 65520.0f) return sign | 0x7c00u;  // half a step above the largest number: to infinity
  // In subnormal range the unit is 2^-24 and whole multiples of it are the encoding.
  if (size < 0x1p-14f) return sign | static_cast<std::uint16_t>(std::nearbyint(size * 0x1p24f));
  const std::uint32_t rest = bits & 0x7fffffffu;
  return sign | static_cast<std::uint16_t>((rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13);
}

void decode_row(SourceKind kind, const std::uint8_t* row, std::int64_t inputs, float* values) {
  switch (kind) {
    case SourceKind::float32: std::memcpy(values, row, static_cast<std::size_t>(inputs) * 4); return;
    case SourceKind::float16:
      for (std::int64_t i = 0; i < inputs; ++i) values[i] = from_float16(read<std::uint16_t>(row + 2 * i));
      return;
    case SourceKind::bfloat16:
      for (std::int64_t i = 0; i < inputs; ++i) values[i] = from_bfloat16(read<std::uint16_t>(row + 2 * i));
      return;
    default:
      for (std::int64_t i = 0; i < inputs; i += kBlock, row += format(kind).unit_bytes) decode_block(kind, row, values + i);
  }
}

void encode_row(SourceKind kind, const float* values, std::int64_t inputs, std::uint8_t* row) {
  switch (kind) {
    case SourceKind::float32: std::memcpy(row, values, static_cast<std::size_t>(inputs) * 4); return;
    case SourceKind::bfloat16:
      for (std::int64_t i = 0; i < inputs; ++i) {
        const std::uint16_t x = to_bfloat16(values[i]);
        std::memcpy(row + 2 * i, &x, sizeof x);
      }
      return;
    case SourceKind::q8_0:
      for (std::int64_t i = 0; i < inputs; i += kBlock, row += format(kind).unit_bytes) encode_q8_block(values + i, row);
      return;
    default:
      throw std::invalid_argument("weights are not quantised to " + std::string(format(kind).name) +
                                  " here; choose float32, bfloat16 or q8_0");
  }
}

}  // namespace headstart
