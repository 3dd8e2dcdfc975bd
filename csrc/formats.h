// Rows of weights as files hold them, and as floats.
//
// The block formats are those of GGUF: 32 weights share a float16 scale d (and minimum m); q8_0 holds d and 32 signed bytes, q4_0 d and
// nibbles that stand for nibble - 8, q4_1 d, m and nibbles; the weight is d * q (+ m). Byte j of a block of nibbles holds weight j
// in its low half and weight j + 16 in its high one. (ggml's block_q8_0, block_q4_0, block_q4_1.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace headstart {

enum class SourceKind : std::uint8_t { float32, float16, bfloat16, q8_0, q4_0, q4_1 };

// std::invalid_argument for any other name.
SourceKind source_kind_named(std::string_view name);
std::string_view name_of(SourceKind kind);

// Of a row; std::invalid_argument unless `inputs` is at least 1 and, for blocks, a multiple of 32.
std::size_t row_bytes(SourceKind kind, std::int64_t inputs);

// Scalar conversions to and from the 16-bit formats; to nearest, ties to even.
float from_float16(std::uint16_t x);
std::uint16_t to_float16(float x);
float from_bfloat16(std::uint16_t x);
std::uint16_t to_bfloat16(float x);

void decode_row(SourceKind kind, const std::uint8_t* row, std::int64_t inputs, float* values);

// Into float32, bfloat16 or q8_0 (scale = max |x| / 127 as float16, values to the nearest). std::invalid_argument for other kinds, and
// where q8_0 cannot hold a value (not finite, or too large for its scale).
void encode_row(SourceKind kind, const float* values, std::int64_t inputs, std::uint8_t* row);

}  // namespace headstart
