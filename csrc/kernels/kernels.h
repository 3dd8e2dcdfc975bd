// What is compiled once an instruction set, and the choice between them at run time.
#pragma once

#include <span>
#include <string_view>

#include "kernels/linear_kernels.h"      // struct LinearKernels: function pointers of linear.inl
#include "kernels/stack_kernels.h"       // struct StackKernels: attention.inl, elementwise.inl
#include "kernels/vocabulary_kernels.h"  // struct VocabularyKernels: vocabulary.inl

namespace headstart {

struct Kernels {
  std::string_view isa;
  LinearKernels linear;
  StackKernels stack;
  VocabularyKernels vocabulary;
};

// The best that the machine has, or the one that HEADSTART_ISA names (std::invalid_argument lists the valid ones).
const Kernels& kernels();

// From now on kernels() is the one of this name; what was built before keeps the kernels that it was packed for.
void choose_isa(std::string_view name);

// Names of all that this machine can run, best first: "amx" (avx512_bf16 with the tile unit), "avx512_bf16", "avx512", "avx2", "portable".
std::span<const std::string_view> available_isas();

// Whether products with few rows are faster here when they ask memory for weights ahead of the hardware's prefetchers. On Intel's
// Xeon they are at every number of rows (1 row of SmolLM2-135M, ms: bfloat16 12.6 to 9.9, q4_1 4.7 to 2.8); on AMD's EPYC those
// prefetchers read faster alone.
bool asks_ahead_for_few_rows();

}  // namespace headstart
