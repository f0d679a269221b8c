/* Allocation that cannot overflow. */
#include "kernels.h"

void *room(int64_t count, size_t size) {
    if (count < 0 || (uint64_t)count > (uint64_t)PY_SSIZE_T_MAX / size) return NULL;
    return malloc(count ? (size_t)count * size : 1);
}

void *zeroed_room(int64_t count, size_t size) {
    if (count < 0 || (uint64_t)count > (uint64_t)PY_SSIZE_T_MAX / size) return NULL;
    return calloc(count ? (size_t)count : 1, size);
}

int make_room(void **array, int64_t *have, int64_t need, size_t size) {
    if (need <= *have) return 0;
    int64_t wanted = need + need / 2 + 64;
    if (wanted < need || (uint64_t)wanted > (uint64_t)PY_SSIZE_T_MAX / size) return -1;
    void *grown = realloc(*array, (size_t)wanted * size);
    if (grown == NULL) return -1;
    *array = grown;
    *have = wanted;
    return 0;
}
