/* The rules of mteval-v13a that look at two characters: stops and commas off words, dashes off numbers. */
#include "words_13a.h"
#include <string.h>

static inline int is_digit(char c) { return c >= '0' && c <= '9'; }
static inline int is_stop(char c) { return c == '.' || c == ','; }

/* The three rules of 13a that look at two characters, each from left to right over what the one before left. A word
 * stands between spaces, and no rule reaches beyond them. They return the new length. */
static int64_t split_after_non_digit(const char *in, int64_t length, char *out) {
    int64_t used = 0;
    for (int64_t i = 0; i < length; i++) {
        out[used++] = in[i];
        if (!is_digit(in[i]) && i + 1 < length && is_stop(in[i + 1])) {
            out[used++] = ' ', out[used++] = in[++i], out[used++] = ' ';
        }
    }
    return used;
}

static int64_t split_before_non_digit(const char *in, int64_t length, char *out) {
    int64_t used = 0;
    for (int64_t i = 0; i < length; i++) {
        int splits = is_stop(in[i]) && i + 1 < length && !is_digit(in[i + 1]);
        if (splits) out[used++] = ' ';
        out[used++] = in[i];
        if (splits) out[used++] = ' ', out[used++] = in[++i];
    }
    return used;
}

static int64_t split_dash_after_digit(const char *in, int64_t length, char *out) {
    int64_t used = 0;
    for (int64_t i = 0; i < length; i++) {
        out[used++] = in[i];
        if (is_digit(in[i]) && i + 1 < length && in[i + 1] == '-') {
            out[used++] = ' ', out[used++] = in[++i], out[used++] = ' ';
        }
    }
    return used;
}

/* No rule more than doubles a text, two characters becoming four; eight bytes behind it may be looked at. */
static int64_t widest(int64_t length) { return (length + 2) * 9 + 16; }

int64_t room_for_13a(int64_t length) { return 2 * widest(length); }

int64_t space_out_13a(const char *word, int64_t length, char *out) {
    char *between = out + widest(length);
    between[0] = ' ';
    memcpy(between + 1, word, (size_t)length);
    between[length + 1] = ' ';
    int64_t used = split_after_non_digit(between, length + 2, out);
    used = split_before_non_digit(out, used, between);
    return split_dash_after_digit(between, used, out);
}
