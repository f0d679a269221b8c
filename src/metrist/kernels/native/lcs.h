/* One block of a longest common subsequence: 64 tokens of the pattern against the whole other text (Hyyrö 2004).
 *
 * A block keeps one word: bit i is 0 where the length grows from the pattern's first i tokens to its first i + 1. It
 * runs over the whole other text, taking at each step the carry of the block before it and leaving its own, so that
 * memory is linear in the texts however long they are. */
#ifndef METRIST_LCS_H
#define METRIST_LCS_H

#include <string.h>
#include "kernels.h"

#define FULL (~(uint64_t)0)

/* masks[token]: where it occurs in the block at hand. All zero between blocks. */
static inline void set_masks(uint64_t *masks, const int32_t *block, int width) {
    for (int i = 0; i < width; i++) masks[block[i]] |= (uint64_t)1 << i;
}

static inline void clear_masks(uint64_t *masks, const int32_t *block, int width) {
    for (int i = 0; i < width; i++) masks[block[i]] = 0;
}

/* The next row from the last. */
static inline uint64_t step(uint64_t row, uint64_t mask) {
    uint64_t shared = row & mask;
    return (row + shared) | (row - shared);
}

/* The same with the carry of the block before, which becomes the block's own. */
static inline uint64_t carried_step(uint64_t row, uint64_t mask, uint64_t *carry) {
    uint64_t shared = row & mask;
    uint64_t sum = row + shared;
    uint64_t over = sum < row;
    sum += *carry;
    *carry = over | (sum < *carry);
    return sum | (row - shared);
}

static inline int block_width(int64_t length, int64_t start) {
    return length - start < 64 ? (int)(length - start) : 64;
}

#endif
