// The table of one instruction set; included by isa_NAME.cpp after its simd header.
//
// Each .inl defines, inside namespace headstart::HEADSTART_ISA, one constant of function pointers: linear_kernels, stack_kernels
// (in attention.inl, which comes after elementwise.inl), vocabulary_kernels.
#include "kernels/kernels.h"

#if __has_include("kernels/linear.inl")
#include "kernels/linear.inl"
#else
namespace headstart::HEADSTART_ISA { constexpr LinearKernels linear_kernels{}; }
#endif
#if __has_include("kernels/attention.inl") && __has_include("kernels/elementwise.inl")
#include "kernels/elementwise.inl"
#include "kernels/attention.inl"
#else
namespace headstart::HEADSTART_ISA { constexpr StackKernels stack_kernels{}; }
#endif
#if __has_include("kernels/vocabulary.inl")
#include "kernels/vocabulary.inl"
#else
namespace headstart::HEADSTART_ISA { constexpr VocabularyKernels vocabulary_kernels{}; }
#endif

namespace headstart::HEADSTART_ISA {

#define HEADSTART_TEXT_OF(name) #name
#define HEADSTART_TEXT(name) HEADSTART_TEXT_OF(name)
extern constinit const Kernels table;
constinit const Kernels table{HEADSTART_TEXT(HEADSTART_ISA), linear_kernels, stack_kernels, vocabulary_kernels};

}  // namespace headstart::HEADSTART_ISA
