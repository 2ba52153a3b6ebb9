#include "pick.h"

#include <stdlib.h>

/* One more version of the hot loops for wide vectors, chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

static uint32_t header_word(const pick_table *table, size_t offset) {
    return *(const volatile uint32_t *)(table->start + offset);
}

static const int32_t *row(const pick_table *table, uint32_t index) {
    return (const int32_t *)(table->start + table->matrix_offset + (size_t)index * table->matrix_stride);
}

uint32_t pick_n(const pick_table *table) {
    uint32_t n = header_word(table, table->n_offset);
    return n < table->slots ? n : table->slots;
}

static uint32_t lanes_in_use(const pick_table *table) {
    uint32_t lanes = header_word(table, table->lanes_offset);
    return lanes < table->lanes ? lanes : table->lanes;
}

static int32_t head_cell(const pick_table *table, int32_t cell, int fade) {
    return fade <= 0 || cell >= table->mark_floor ? cell : cell >> fade;
}

WIDE static void add_row(int32_t *restrict live, const int32_t *restrict cells, uint32_t n) {
    for (uint32_t slot = 0; slot < n; slot++) {
        live[slot] += cells[slot];
    }
}

/* Four rows at a time: the sums are loaded and stored a quarter as often. Rows lie `stride` cells apart. */
WIDE static void add_four_rows(int32_t *restrict live, const int32_t *restrict cells, size_t stride, uint32_t n) {
    const int32_t *restrict b = cells + stride, *restrict c = b + stride, *restrict d = c + stride;
    for (uint32_t slot = 0; slot < n; slot++) {
        live[slot] += cells[slot] + b[slot] + c[slot] + d[slot];
    }
}

WIDE static int32_t least_of(const int32_t *live, uint32_t n) {
    int32_t least = INT32_MAX;
    for (uint32_t slot = 0; slot < n; slot++) {
        least = live[slot] < least ? live[slot] : least;
    }
    return least;
}

static void sum_all(const pick_table *table, uint32_t n, int fade, const int32_t *extra, int32_t *restrict live) {
    const int32_t *head = row(table, fade < 0 ? 0 : 1);
    const size_t stride = table->matrix_stride / sizeof(int32_t);
    uint32_t lanes = lanes_in_use(table), lane = 0;
    if (fade <= 0) {
        for (uint32_t slot = 0; slot < n; slot++) {
            live[slot] = head[slot];
        }
    } else {
        for (uint32_t slot = 0; slot < n; slot++) {
            live[slot] = head_cell(table, head[slot], fade);
        }
    }
    for (; lane + 4 <= lanes; lane += 4) {
        add_four_rows(live, row(table, 2 + lane), stride, n);
    }
    for (; lane < lanes; lane++) {
        add_row(live, row(table, 2 + lane), n);
    }
    if (extra != NULL) {
        add_row(live, extra, n);
    }
}

void pick_live(const pick_table *table, const int32_t *slots, uint32_t count, int fade, const int32_t *extra,
               int32_t *restrict live) {
    const int32_t *head = row(table, fade < 0 ? 0 : 1);
    const size_t stride = table->matrix_stride / sizeof(int32_t);
    const int32_t *first = row(table, 2);
    uint32_t lanes = lanes_in_use(table);
    for (uint32_t index = 0; index < count; index++) {
        const int32_t *cell = first + slots[index];
        int32_t value = head_cell(table, head[slots[index]], fade);
        for (uint32_t lane = 0; lane < lanes; lane++, cell += stride) {
            value += *cell;
        }
        live[index] = extra == NULL ? value : value + extra[slots[index]];
    }
}

static int32_t slot_at(const int32_t *candidates, uint32_t index) {
    return candidates == NULL ? (int32_t)index : candidates[index];
}

static int32_t band_of(const pick_table *table, int32_t cell) {
    return cell < table->mark_floor ? 0 : (cell - table->mark_floor) / table->mark_band + 1;
}

/* The index of the first candidate at or after the cursor, 0 if all lie before it. */
static uint32_t first_at(const int32_t *candidates, uint32_t count, int64_t cursor) {
    uint32_t low = 0, high = count;
    if (candidates == NULL) {
        return cursor <= 0 || cursor >= count ? 0 : (uint32_t)cursor;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (candidates[middle] < cursor) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == count ? 0 : low;
}

/* The first slot at or after the cursor whose live value is at most `limit` and whose mark is `band` (< 0: any),
 * else the first such slot at all; -1 if there is none. */
static int32_t take(const int32_t *candidates, uint32_t count, int64_t cursor, const int32_t *live, int32_t limit,
                    const int32_t *head, const pick_table *table, int32_t band) {
    uint32_t start = first_at(candidates, count, cursor);
    for (uint32_t step = 0, index = start; step < count; step++, index++) {
        if (index == count) {
            index = 0;
        }
        if (live[index] <= limit && (band < 0 || band_of(table, head[slot_at(candidates, index)]) == band)) {
            return slot_at(candidates, index);
        }
    }
    return -1;
}

/* What ties with an unmarked `least`; never a marked slot. */
static int32_t tie_limit(const pick_table *table, int32_t least) {
    int32_t limit = least + table->tie_window;
    return limit < table->mark_floor ? limit : table->mark_floor - 1;
}

static int32_t choose_marked(const pick_table *table, const int32_t *candidates, uint32_t count, int64_t cursor,
                             int fade, const int32_t *live) {
    /* The head cells are read again; a mark that changed in between is as good as the one before. */
    const int32_t *head = row(table, fade < 0 ? 0 : 1);
    int32_t mildest = INT32_MAX, least = INT32_MAX;
    for (uint32_t index = 0; index < count; index++) {
        int32_t band = band_of(table, head[slot_at(candidates, index)]);
        if (band < mildest || (band == mildest && live[index] < least)) {
            least = live[index];
            mildest = band;
        }
    }
    if (mildest >= table->unused_band) {
        return PICK_NO_SLOT;
    }
    int32_t slot = take(candidates, count, cursor, live, least + table->tie_window, head, table, mildest);
    return slot < 0 ? PICK_NO_SLOT : ~slot;
}

int32_t pick_choose(const pick_table *table, const int32_t *candidates, uint32_t count, int64_t cursor, int fade,
                    const int32_t *extra) {
    int32_t on_stack[PICK_STACK_SLOTS];
    int32_t *live = on_stack;
    if (candidates == NULL) {
        count = pick_n(table);
    }
    if (count == 0) {
        return PICK_NO_SLOT;
    }
    if (count > PICK_STACK_SLOTS) {
        live = malloc(count * sizeof *live);
        if (live == NULL) {
            return PICK_NO_MEMORY;
        }
    }
    if (candidates == NULL) {
        sum_all(table, count, fade, extra, live);
    } else {
        pick_live(table, candidates, count, fade, extra, live);
    }
    int32_t least = least_of(live, count), answer;
    if (least < table->mark_floor) {
        answer = take(candidates, count, cursor, live, tie_limit(table, least), NULL, table, -1);
    } else {
        answer = choose_marked(table, candidates, count, cursor, fade, live);
    }
    if (live != on_stack) {
        free(live);
    }
    return answer;
}

int32_t pick_among(const pick_table *table, const int32_t *slots, uint32_t count, int64_t cursor, const int32_t *extra) {
    int32_t live[PICK_STACK_SLOTS];
    if (count == 0 || count > PICK_STACK_SLOTS) {
        return -1;
    }
    pick_live(table, slots, count, -1, extra, live);
    int32_t least = least_of(live, count);
    if (least >= table->mark_floor) {
        return -1;
    }
    int32_t limit = tie_limit(table, least), best = -1;
    int64_t best_distance = INT64_MAX;
    for (uint32_t index = 0; index < count; index++) {
        /* Behind the cursor is farther than anything at or after it. */
        int64_t distance = slots[index] - cursor;
        distance = distance < 0 ? distance + ((int64_t)1 << 32) : distance;
        if (live[index] <= limit && distance < best_distance) {
            best = (int32_t)index;
            best_distance = distance;
        }
    }
    return best;
}
