/* Lengths of longest common subsequences: four blocks go side by side, since each only waits for the carry of the one
 * before it, and processors do several such things at once. */
#include "lcs.h"

#define WIDE 256

typedef uint64_t Masks[4]; /* a token's masks in four blocks */

typedef struct {
    Masks *masks; /* by token */
    uint8_t *carries;
    int64_t carries_room;
} Lcs;

static void set_wide(Masks *masks, const int32_t *pattern, int width) {
    for (int i = 0; i < width; i++) masks[pattern[i]][i >> 6] |= (uint64_t)1 << (i & 63);
}

static void clear_wide(Masks *masks, const int32_t *pattern, int width) {
    for (int i = 0; i < width; i++) masks[pattern[i]][i >> 6] = 0;
}

static void run_narrow(Masks *masks, Span other, uint64_t *row) {
    for (int64_t j = 0; j < other.length; j++) row[0] = step(row[0], masks[other.at[j]][0]);
}

/* `carries` is NULL where the pattern has no more than these four blocks. */
static void run_wide(Masks *masks, Span other, uint8_t *carries, uint64_t *rows) {
    uint64_t a = FULL, b = FULL, c = FULL, d = FULL;
    for (int64_t j = 0; j < other.length; j++) {
        const uint64_t *mask = masks[other.at[j]];
        uint64_t carry = carries == NULL ? 0 : carries[j];
        a = carried_step(a, mask[0], &carry);
        b = carried_step(b, mask[1], &carry);
        c = carried_step(c, mask[2], &carry);
        d = carried_step(d, mask[3], &carry);
        if (carries != NULL) carries[j] = (uint8_t)carry;
    }
    rows[0] = a, rows[1] = b, rows[2] = c, rows[3] = d;
}

/* The zeros: where the length grew. Bits beyond the pattern have no mask and stay ones. */
static int64_t grown(const uint64_t *rows) {
    int64_t count = 0;
    for (int k = 0; k < 4; k++) count += __builtin_popcountll(~rows[k]);
    return count;
}

static int64_t piece_length(Masks *masks, Span piece, Span other, uint8_t *carries) {
    uint64_t rows[4] = {FULL, FULL, FULL, FULL};
    set_wide(masks, piece.at, (int)piece.length);
    if (piece.length <= 64 && carries == NULL) run_narrow(masks, other, rows);
    else run_wide(masks, other, carries, rows);
    clear_wide(masks, piece.at, (int)piece.length);
    return grown(rows);
}

static int64_t work(int64_t pattern, int64_t other) {
    return pattern <= 64 ? other + pattern : (pattern + WIDE - 1) / WIDE * other * 2 + pattern;
}

static int lcs_length(Lcs *lcs, Span a, Span b, int64_t *length) {
    int64_t common = 0;
    while (a.length && b.length && a.at[0] == b.at[0]) a.at++, b.at++, a.length--, b.length--, common++;
    while (a.length && b.length && a.at[a.length - 1] == b.at[b.length - 1]) a.length--, b.length--, common++;
    int a_first = work(a.length, b.length) <= work(b.length, a.length);
    Span pattern = a_first ? a : b, other = a_first ? b : a;
    uint8_t *carries = NULL;
    if (pattern.length > WIDE) {
        if (make_room((void **)&lcs->carries, &lcs->carries_room, other.length, 1) < 0) return -1;
        carries = lcs->carries;
        memset(carries, 0, (size_t)other.length);
    }
    for (int64_t start = 0; start < pattern.length; start += WIDE) {
        int64_t left = pattern.length - start;
        common += piece_length(lcs->masks, (Span){pattern.at + start, left < WIDE ? left : WIDE}, other, carries);
    }
    *length = common;
    return 0;
}

int measure_lcs(const Texts *texts, const int32_t *outputs, const int32_t *references, int64_t pairs, int64_t *lengths) {
    Lcs lcs = {zeroed_room(texts->distinct, sizeof(Masks)), NULL, 0};
    int failed = lcs.masks == NULL ? -1 : 0;
    for (int64_t p = 0; p < pairs && !failed; p++) {
        failed = lcs_length(&lcs, text_of(texts, references[p]), text_of(texts, outputs[p]), &lengths[p]);
    }
    free(lcs.masks), free(lcs.carries);
    return failed;
}
