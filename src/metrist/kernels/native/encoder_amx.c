/* The functions of encoder.h with AMX besides AVX-512: the same numbers as with other instructions, sooner. */
#define _DEFAULT_SOURCE 1
#define METRIST_AVX512 1
#define METRIST_AMX 1
#include "encoder.h"

#include <stdlib.h>

#if defined(__x86_64__) && defined(__linux__) && (__clang_major__ >= 12 || __GNUC__ >= 11)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lanes.h"

#include "encoder_layers.h"

/* From <asm/prctl.h> and the processor's manual: the system keeps the tiles of a process only if it is asked to. */
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25 };

const EncoderFunctions *amx_functions(void) {
    unsigned a, b, c, d;
    if (avx512_functions() == NULL || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return NULL;
    if (!(d & AMX_TILE) || !(d & AMX_INT8)) return NULL;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0 ? &FUNCTIONS : NULL;
}

#else

const EncoderFunctions *amx_functions(void) { return NULL; }

#endif
