/* See encoder.h. Chooses the functions by what the processor can do. */
#include "encoder.h"

#include <stdlib.h>
#include <string.h>

#include "lanes.h"

#if HAVE_LANES
#include "encoder_layers.h"
#endif

#if defined(__x86_64__) && HAVE_LANES

static int has_lanes(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#elif defined(__linux__) && HAVE_LANES
#include <sys/auxv.h>

/* HWCAP_ASIMDDP: the processor multiplies 8-bit integers (Linux names the bit in <asm/hwcap.h>). */
static int has_lanes(void) { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }

#elif defined(__APPLE__) && HAVE_LANES

/* Every Apple processor of this architecture has the instructions. */
static int has_lanes(void) { return 1; }

#else

static int has_lanes(void) { return 0; }

#endif

const EncoderFunctions *lane_functions(void) {
#if HAVE_LANES
    return has_lanes() ? &FUNCTIONS : NULL;
#else
    return NULL;
#endif
}
