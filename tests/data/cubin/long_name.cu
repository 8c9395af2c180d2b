// SPDX-License-Identifier: Apache-2.0
//
// Names of over a thousand characters, as expression templates make them, and code from a header.
#include "reduce.h"

template <class Left, class Right>
struct Product {
  __device__ float operator()(float x) const { return Left()(x) * Right()(x + 1.0f); }
};

struct LeafOfAnExpressionTemplate {
  __device__ float operator()(float x) const { return x * 0.5f + 3.0f; }
};

template <int Depth>
struct Tree {
  using Type = Product<typename Tree<Depth - 1>::Type, typename Tree<Depth - 1>::Type>;
};

template <>
struct Tree<0> {
  using Type = LeafOfAnExpressionTemplate;
};

template <class Expression, class Op>
__global__ void evaluate(float* out, const float* in, int n) {
  Op op;
  float best = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    best = op(best, Expression()(in[i]));
  }
  best = reduce::block(best, op);
  if (threadIdx.x == 0) *out = best;
}

struct NamesOfTypesRepeatInMangledNamesUnlessTheCompilerSubstitutesThem {};

template <class... Types>
__global__ void many_types(float* out, const float* in, int n) {
  float value = threadIdx.x < n ? in[threadIdx.x] : 0;
  value = reduce::block(value, reduce::Sum<float>());
  if (threadIdx.x == 0) out[blockIdx.x] = value / sizeof...(Types);
}

template <int N>
struct TypeNumberOfAFamilyOfTypesWithALongName {};
template <int... N>
struct Many {
  static void* get() {
    return reinterpret_cast<void*>(many_types<TypeNumberOfAFamilyOfTypesWithALongName<N>...>);
  }
};

void* keep[] = {
    reinterpret_cast<void*>(evaluate<Tree<3>::Type, reduce::Max<float>>),
    reinterpret_cast<void*>(evaluate<Tree<1>::Type, reduce::Sum<float>>),
    Many<100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112, 113, 114, 115, 116, 117,
         118, 119, 120, 121, 122, 123, 124, 125, 126, 127, 128, 129, 130, 131, 132, 133, 134, 135,
         136, 137, 138, 139, 140, 141, 142, 143, 144, 145, 146, 147, 148, 149, 150, 151, 152, 153,
         154, 155, 156, 157, 158, 159, 160, 161, 162, 163, 164, 165, 166, 167, 168, 169, 170, 171,
         172, 173, 174, 175, 176, 177, 178, 179, 180, 181, 182, 183, 184, 185, 186, 187, 188,
         189>::get(),
};
