/* The functions of encoder.h with AVX-512 and VNNI: the same numbers as with other instructions, sooner. */
#define METRIST_AVX512 1
#include "encoder.h"

#include <stdlib.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include "lanes.h"

#include "encoder_layers.h"

const EncoderFunctions *avx512_functions(void) {
    int supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("fma");
    return supported ? &FUNCTIONS : NULL;
}

#else

const EncoderFunctions *avx512_functions(void) { return NULL; }

#endif
