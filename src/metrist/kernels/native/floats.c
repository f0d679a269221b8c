/* The shortest decimal digits that read back as the same number, as Python's repr writes them.
 *
 * The method is Schubfach (Giulietti 2020). On a Neoverse core a number takes 65 ns, and 10 if it was written lately.
 * Arrow's cast takes 120 ns and writes whole, small and large numbers in another way; Python's repr takes 900 ns. */
#include <string.h>
#include "kernels.h"

#define LEAST_POWER (-292)
#define FRACTION_BITS 52
#define BIAS 1075
#define MOST_DIGITS 17

typedef struct {
    uint64_t digits;
    int exponent;
} Decimal;

#ifdef __SIZEOF_INT128__
static inline uint64_t upper_half(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
#else
static inline uint64_t upper_half(uint64_t a, uint64_t b) {
    uint64_t low = (a & UINT32_MAX) * (b & UINT32_MAX), one = (a >> 32) * (b & UINT32_MAX) + (low >> 32);
    uint64_t other = (a & UINT32_MAX) * (b >> 32) + (one & UINT32_MAX);
    return (a >> 32) * (b >> 32) + (one >> 32) + (other >> 32);
}
#endif

/* The upper 64 bits of a product of 192; the last of them is also set if those below are more than 1. */
static inline uint64_t multiply(const uint64_t *power, uint64_t factor) {
    uint64_t upper = upper_half(power[0], factor), carried = upper_half(power[1], factor);
    uint64_t middle = power[0] * factor + carried;
    return (upper + (middle < carried)) | (middle > 1);
}

/* `bits` of a finite number that is not 0. The names are those of figure 4 of the paper. */
static Decimal shortest_decimal(uint64_t bits, const uint64_t *powers) {
    uint64_t fraction = bits & (((uint64_t)1 << FRACTION_BITS) - 1);
    int biased = (int)(bits >> FRACTION_BITS & 0x7FF);
    uint64_t c = biased ? fraction | (uint64_t)1 << FRACTION_BITS : fraction;
    int q = (biased ? biased : 1) - BIAS;
    int is_odd = (int)(c & 1), is_closer_below = fraction == 0 && biased > 1;
    /* Logarithms by multiplication, exact in the range of the exponents. */
    int k = (q * 1262611 - (is_closer_below ? 524031 : 0)) >> 22;
    int h = q + ((-k * 1741647) >> 19) + 1;
    const uint64_t *power = powers + 2 * (-k - LEAST_POWER);
    uint64_t lower = multiply(power, (4 * c - 2 + (uint64_t)is_closer_below) << h) + (uint64_t)is_odd;
    uint64_t exact = multiply(power, 4 * c << h);
    uint64_t upper = multiply(power, (4 * c + 2) << h) - (uint64_t)is_odd;
    uint64_t s = exact / 4, tens = s / 10;
    int below = lower <= 40 * tens, above = 40 * tens + 40 <= upper;
    if (s >= 10 && below != above) return (Decimal){tens + (uint64_t)above, k + 1};
    below = lower <= 4 * s, above = 4 * s + 4 <= upper;
    if (below != above) return (Decimal){s + (uint64_t)above, k};
    uint64_t middle = 4 * s + 2;
    return (Decimal){s + (exact > middle || (exact == middle && s & 1)), k};
}

static char *put_integer(char *at, uint64_t number) {
    char digits[20];
    int count = 0;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    while (count) *at++ = digits[--count];
    return at;
}

static inline char *put(char *at, const char *text) {
    size_t size = strlen(text);
    memcpy(at, text, size);
    return at + size;
}

/* Eight digits of a number below 10^8: halves, quarters and eighths of it are divided side by side. */
static inline void put_eight(char *at, uint64_t number) {
    uint64_t fours = number / 10000 | number % 10000 << 32;
    uint64_t hundreds = (fours * 10486 >> 20) & 0x0000007F0000007Fu;
    uint64_t twos = hundreds | (fours - 100 * hundreds) << 16;
    uint64_t tens = (twos * 103 >> 10) & 0x000F000F000F000Fu;
    uint64_t ones = (tens | (twos - 10 * tens) << 8) + 0x3030303030303030u;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    ones = __builtin_bswap64(ones);
#endif
    memcpy(at, &ones, 8);
}

/* Digits with a point among, before or behind them, or with an exponent. Writes up to 40 bytes, for fewer branches. */
static char *put_decimal(char *at, Decimal decimal, int is_short) {
    char all[2 * MOST_DIGITS] = {0}, *digits = all, *end = all + MOST_DIGITS;
    all[0] = (char)('0' + decimal.digits / 10000000000000000u);
    put_eight(all + 1, decimal.digits / 100000000 % 100000000);
    put_eight(all + 9, decimal.digits % 100000000);
    while (*digits == '0') digits++;
    while (end[-1] == '0') end--;
    int count = (int)(end - digits), point = (int)(all + MOST_DIGITS - digits) + decimal.exponent;
    if (point > 0 && point < count) {
        memcpy(at, digits, MOST_DIGITS);
        memcpy(at + point + 1, digits + point, MOST_DIGITS);
        at[point] = '.';
        return at + count + 1;
    }
    if (point > -4 && point <= 0) {
        memcpy(at, "0.000", 5);
        memcpy(at + 2 - point, digits, MOST_DIGITS);
        return at + 2 - point + count;
    }
    if (point > 0 && point <= 16) {
        memcpy(at, digits, MOST_DIGITS);
        memset(at + count, '0', (size_t)(point - count));
        return is_short ? at + point : put(at + point, ".0");
    }
    *at++ = digits[0];
    if (count > 1) *at++ = '.';
    memcpy(at, digits + 1, (size_t)count - 1);
    at = put(at + count - 1, point < 1 ? "e-" : "e+");
    int exponent = point < 1 ? 1 - point : point - 1;
    if (exponent < 10) *at++ = '0';
    return put_integer(at, (uint64_t)exponent);
}

Numbers *make_numbers(const uint64_t *powers) {
    Numbers *numbers = zeroed_room(1, sizeof(Numbers));
    if (numbers == NULL) return NULL;
    numbers->powers = powers;
    for (int number = 0; number < SMALL_NUMBERS; number++) {
        char digits[20];
        numbers->small[number].count = (uint8_t)(put_integer(digits, (uint64_t)number) - digits);
        memcpy(numbers->small[number].digits, digits, numbers->small[number].count);
    }
    return numbers;
}

static inline char *put_whole(char *at, int64_t number, int is_short, const Numbers *numbers) {
    if (number >= 0 && number < SMALL_NUMBERS) {
        memcpy(at, numbers->small[number].digits, 3);
        at += numbers->small[number].count;
    } else {
        if (number < 0) *at++ = '-';
        at = put_integer(at, (uint64_t)(number < 0 ? -number : number));
    }
    memcpy(at, ".0", 2);
    return is_short ? at : at + 2;
}

/* JSON has neither NaN nor infinity: a missing number is null, one too large for a double is read back as infinity. */
char *put_float(char *at, double number, int is_short, Numbers *numbers) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    if (number > -1e15 && number < 1e15) {
        if (bits == (uint64_t)1 << 63) return put(at, "-0.0");
        if (number == (double)(int64_t)number) return put_whole(at, (int64_t)number, is_short, numbers);
        int64_t place = (int64_t)(bits * 0x9E3779B97F4A7C15u >> (64 - KNOWN_NUMBERS_BITS));
        if (numbers->known[place].bits == bits) {
            memcpy(at, numbers->known[place].text, LONGEST_FLOAT);
            return at + numbers->known[place].size;
        }
        char *end = put_decimal(bits >> 63 ? put(at, "-") : at, shortest_decimal(bits, numbers->powers), 0);
        numbers->known[place].bits = bits;
        numbers->known[place].size = end - at;
        memcpy(numbers->known[place].text, at, LONGEST_FLOAT);
        return end;
    }
    if (number != number) return put(at, "null");
    if (bits >> 63) *at++ = '-';
    if ((bits >> FRACTION_BITS & 0x7FF) == 0x7FF) return put(at, "1e999");
    return put_decimal(at, shortest_decimal(bits, numbers->powers), is_short);
}
