/* Lengths of longest common subsequences. */
#include "lcs.h"

typedef struct {
    uint64_t *masks;
    uint8_t *carries;
    int64_t carries_room;
} Lcs;

/* All rows of a block but the last are thrown away. `carries` is NULL where there is no block before or after. */
static uint64_t last_row(const uint64_t *masks, Span other, uint8_t *carries) {
    uint64_t row = FULL;
    if (carries == NULL) {
        for (int64_t j = 0; j < other.length; j++) row = step(row, masks[other.at[j]]);
        return row;
    }
    for (int64_t j = 0; j < other.length; j++) {
        uint64_t carry = carries[j];
        row = carried_step(row, masks[other.at[j]], &carry);
        carries[j] = (uint8_t)carry;
    }
    return row;
}

static int64_t grown_bits(uint64_t row, int width) {
    uint64_t valid = width == 64 ? FULL : ((uint64_t)1 << width) - 1;
    return __builtin_popcountll(~row & valid);
}

static int64_t lcs_work(int64_t pattern, int64_t other) { return (pattern + 63) / 64 * (other + 64); }

static int lcs_length(Lcs *lcs, Span a, Span b, int64_t *length) {
    int64_t common = 0;
    while (a.length && b.length && a.at[0] == b.at[0]) a.at++, b.at++, a.length--, b.length--, common++;
    while (a.length && b.length && a.at[a.length - 1] == b.at[b.length - 1]) a.length--, b.length--, common++;
    int a_first = lcs_work(a.length, b.length) <= lcs_work(b.length, a.length);
    Span pattern = a_first ? a : b, other = a_first ? b : a;
    uint8_t *carries = NULL;
    if (pattern.length > 64) {
        if (make_room((void **)&lcs->carries, &lcs->carries_room, other.length, 1) < 0) return -1;
        carries = lcs->carries;
        memset(carries, 0, (size_t)other.length);
    }
    for (int64_t start = 0; start < pattern.length; start += 64) {
        int width = block_width(pattern.length, start);
        set_masks(lcs->masks, pattern.at + start, width);
        common += grown_bits(last_row(lcs->masks, other, carries), width);
        clear_masks(lcs->masks, pattern.at + start, width);
    }
    *length = common;
    return 0;
}

int measure_lcs(const Texts *texts, const int32_t *outputs, const int32_t *references, int64_t pairs, int64_t *lengths) {
    Lcs lcs = {zeroed_room(texts->distinct, sizeof(uint64_t)), NULL, 0};
    int failed = lcs.masks == NULL ? -1 : 0;
    for (int64_t p = 0; p < pairs && !failed; p++) {
        failed = lcs_length(&lcs, text_of(texts, references[p]), text_of(texts, outputs[p]), &lengths[p]);
    }
    free(lcs.masks);
    free(lcs.carries);
    return failed;
}
