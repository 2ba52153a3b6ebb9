/* The steps of a ledger: what happens to open charges. Called with the ledger locked, unless said otherwise. */
#include "types.h"

#include <time.h>

/* Charges that nobody holds are ended by time; beyond this many the oldest ends early. */
#define UNGUARDED_LIMIT 65536
#define HOLD_STEP 0x9E3779B9u
#define PREFILL_RATE 7500 /* prompt tokens per second, where nobody sees the first token */
#define MEAN_WEIGHT (1.0 / 64)

int charge_is_open(const count_charge *charge) {
    return charge->phase == CHARGE_PREFILL || charge->phase == CHARGE_DECODE;
}

static void link_last(count_charge *head, count_charge *charge) {
    charge->next = head;
    charge->previous = head->previous;
    head->previous->next = charge;
    head->previous = charge;
}

void charge_unlink(count_charge *charge) {
    charge->previous->next = charge->next;
    charge->next->previous = charge->previous;
    charge->next = charge->previous = NULL;
}

const count_rows *ledger_rows_of(const Ledger *ledger, const count_charge *charge) {
    const count_rows *rows = ledger_rows(ledger);
    return rows != NULL && charge->home == rows && count_is_mine(rows) ? rows : NULL;
}

/* Count the charge where its seat says now. By an outdated slot map nothing is counted in a row: the slot may have
 * another holder. The next slot map moves it to the right one. */
static void count_at_seat(Ledger *ledger, count_charge *charge) {
    Seat *seat = charge->seat;
    int current = ledger->core != NULL && core_word(ledger->core, MEMBERSHIP_OFFSET) == ledger->membership;
    charge->slot = current ? ledger_slot_for(ledger, charge) : -1;
    charge->home = NULL;
    if (charge->slot < 0) {
        seat->units += count_price(charge, &ledger->nominal);
    } else if (count_is_mine(ledger_rows(ledger))) {
        count_add(ledger_rows(ledger), charge, &seat->prices);
    } /* else the lane is lost; housekeeping claims anew and counts every open charge there */
}

void ledger_end_prefill(Ledger *ledger, count_charge *charge) {
    if (charge->phase != CHARGE_PREFILL || charge->held) {
        return;
    }
    if (charge->slot < 0) {
        ((Seat *)charge->seat)->units -= charge->added_prefill;
    }
    count_end_prefill(ledger_rows_of(ledger, charge), charge);
}

void ledger_close(Ledger *ledger, count_charge *charge, uint32_t *count) {
    const count_rows *rows = ledger_rows_of(ledger, charge);
    if (charge->slot < 0) {
        ((Seat *)charge->seat)->units -= charge->added_request + charge->added_prefill + charge->added_kv;
    } else if (rows != NULL) {
        count_take_back(rows, charge);
    }
    charge->phase = CHARGE_CLOSED;
    ((Seat *)charge->seat)->open -= 1;
    charge_unlink(charge);
    *count -= 1;
}

/* The length taken for a request that does not tell. */
static int32_t guess(const Ledger *ledger, const Seat *seat) {
    double tokens = seat->prompt_tokens > 0 ? seat->prompt_tokens : ledger->mean_prompt_tokens;
    return tokens < PROMPT_TOKENS_LIMIT ? (int32_t)tokens : PROMPT_TOKENS_LIMIT;
}

static void begin(Ledger *ledger, count_charge *charge, Seat *seat, int32_t prompt_tokens, int first_token_visible,
                  unsigned char reason, int64_t now) {
    int guessed = prompt_tokens < 0;
    if (guessed) {
        prompt_tokens = guess(ledger, seat);
        seat->guessed = 1;
    } else {
        ledger->mean_prompt_tokens += (prompt_tokens - ledger->mean_prompt_tokens) * MEAN_WEIGHT;
    }
    Py_INCREF(seat);
    charge->seat = seat;
    seat->open += 1;
    charge->incarnation = seat->incarnation;
    charge->prompt_tokens = prompt_tokens;
    charge->guessed = (unsigned char)guessed;
    charge->reason = reason;
    if (first_token_visible || !guessed) {
        charge->phase = CHARGE_PREFILL;
        charge->prefill_ends = first_token_visible ? 0 : later(now, (int64_t)prompt_tokens * 1000000000 / PREFILL_RATE);
    } else { /* a guess of a length and of a time: better none */
        charge->phase = CHARGE_DECODE;
        charge->prefill_ends = 0;
    }
    count_at_seat(ledger, charge);
}

void ledger_open(Ledger *ledger, Guard *guard, PyObject *instance, Seat *seat, int32_t prompt_tokens,
                 int first_token_visible, unsigned char reason, int64_t now) {
    Py_INCREF(instance);
    guard->instance = instance;
    begin(ledger, &guard->charge, seat, prompt_tokens, first_token_visible, reason, now);
    link_last(&ledger->guarded, &guard->charge);
    ledger->guarded_count += 1;
}

count_charge *ledger_add_unguarded(Ledger *ledger, count_charge *charge) {
    count_charge *oldest = NULL;
    if (ledger->unguarded_count >= UNGUARDED_LIMIT) {
        oldest = ledger->unguarded.next;
        ledger_close(ledger, oldest, &ledger->unguarded_count);
    }
    link_last(&ledger->unguarded, charge);
    ledger->unguarded_count += 1;
    return oldest;
}

/* As in ledger/rules.py, where it says why. No hold time is too long for the product. */
static int64_t held_ns(int64_t hold_ns, uint32_t turn) {
    return hold_ns - (hold_ns >> 2) + ((hold_ns >> 20) * (int64_t)(turn >> 12) >> 1);
}

count_charge *ledger_hold(Ledger *ledger, count_charge *charge, Seat *seat, unsigned char reason, int64_t now) {
    seat->turn += HOLD_STEP;
    *charge = (count_charge){.ends_at = later(now, held_ns(seat->hold_ns, seat->turn))};
    begin(ledger, charge, seat, -1, 0, reason, now);
    return ledger_add_unguarded(ledger, charge);
}

void ledger_free_charge(count_charge *charge) {
    if (charge != NULL) {
        Py_DECREF((PyObject *)charge->seat);
        PyMem_Free(charge);
    }
}

void ledger_free_chain(count_charge *chain) {
    while (chain != NULL) {
        count_charge *next = chain->next;
        ledger_free_charge(chain);
        chain = next;
    }
}

void ledger_recount(Ledger *ledger) {
    count_charge *heads[] = {&ledger->guarded, &ledger->unguarded};
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next; charge != heads[index]; charge = charge->next) {
            ((Seat *)charge->seat)->units = 0;
            charge->dispatched = 1; /* what a process brings along was not dispatched in this lane */
        }
    }
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next; charge != heads[index]; charge = charge->next) {
            count_at_seat(ledger, charge);
        }
    }
}

void ledger_match_again(Ledger *ledger) {
    count_charge *heads[] = {&ledger->guarded, &ledger->unguarded};
    for (int index = 0; index < 2; index++) {
        for (count_charge *charge = heads[index]->next; charge != heads[index]; charge = charge->next) {
            Seat *seat = charge->seat;
            if (charge->slot < 0 && ledger_slot_for(ledger, charge) >= 0) {
                seat->units -= charge->added_request + charge->added_prefill + charge->added_kv;
                count_at_seat(ledger, charge);
            }
        }
    }
}

/* -- arguments; not locked ------------------------------------------------------------------------------------ */

int64_t ledger_now(Ledger *ledger, int coarse) {
    if (ledger->clock == NULL) {
        struct timespec now;
        clock_gettime(coarse ? CLOCK_MONOTONIC_COARSE : CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    PyObject *answer = PyObject_CallNoArgs(ledger->clock);
    if (answer == NULL) {
        return -1;
    }
    long long now = PyLong_AsLongLong(answer);
    Py_DECREF(answer);
    if (now < 0 && !PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "the clock says %lld ns: it must not be negative", now);
    }
    return now < 0 ? -1 : now;
}

int32_t prompt_tokens_of(PyObject *argument) {
    if (argument == Py_None) {
        return -1;
    }
    PyObject *number = PyLong_CheckExact(argument) ? (Py_INCREF(argument), argument) : PyNumber_Long(argument);
    int overflow = 0;
    long long tokens = number == NULL ? -1 : PyLong_AsLongLongAndOverflow(number, &overflow);
    Py_XDECREF(number);
    if (number == NULL || (tokens == -1 && PyErr_Occurred())) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -2;
        }
        PyErr_Clear(); /* no number: as good as not told */
        return -1;
    }
    if (overflow != 0) {
        return overflow < 0 ? 0 : PROMPT_TOKENS_LIMIT;
    }
    return (int32_t)(tokens < 0 ? 0 : tokens > PROMPT_TOKENS_LIMIT ? PROMPT_TOKENS_LIMIT : tokens);
}
