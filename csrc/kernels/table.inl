// The table of one instruction set; included by isa_NAME.cpp after its simd header.
//
// Each .inl defines, inside namespace headstart::HEADSTART_ISA, one constant of function pointers: linear_kernels, stack_kernels
// (in attention.inl, which comes after elementwise.inl), vocabulary_kernels.
#include "kernels/kernels.h"

#include "kernels/linear.inl"
#include "kernels/elementwise.inl"
#include "kernels/attention.inl"
#include "kernels/vocabulary.inl"

namespace headstart::HEADSTART_ISA {

#define HEADSTART_TEXT_OF(name) #name
#define HEADSTART_TEXT(name) HEADSTART_TEXT_OF(name)
extern constinit const Kernels table;
constinit const Kernels table{HEADSTART_TEXT(HEADSTART_ISA), linear_kernels, stack_kernels, vocabulary_kernels};

}  // namespace headstart::HEADSTART_ISA
