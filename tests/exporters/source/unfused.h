/* As LLVM has it for machines without fused multiply-adds: two roundings. */
#include <math.h>
#define fmaf(a, b, c) ((a) * (b) + (c))
#define fma(a, b, c) ((a) * (b) + (c))
