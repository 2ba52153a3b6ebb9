/* A Picker and its way from a list of objects to a counted request. */
#ifndef LOADBOARD_PICKER_H
#define LOADBOARD_PICKER_H

#include "roster.h"

#define TURNS 64 /* cursors; as score_table/ledger/rules.py says */

typedef struct Picker {
    PyObject_HEAD
    step_lock lock; /* taken before the ledger's */
    Ledger *ledger;
    struct Picker *next; /* of the same ledger; under the ledger's lock */
    uint64_t version; /* of the ledger for which the roster was asked */
    PyObject *seat_of, *stream;
    roster roster;
    int64_t cursors[TURNS]; /* by turn_of */
    unsigned long long picks;
} Picker;

/* What the caller asked with. */
typedef struct {
    PyObject *sequence; /* a list or tuple; without the GIL always a tuple, which no other thread can change */
    int is_list;
    Py_ssize_t length;
    int64_t now;
    int alike;        /* the list kept that looks like it; -1: none does */
    uint64_t changes; /* of the roster when that was found */
    int keep;         /* it came again: keep it */
} question;

/* Begin to ask about `instances`: 0; 1 where it is not for this picker; -1 with an exception set. On 0 the question
 * holds a reference to its sequence. */
int picker_ask(Picker *picker, PyObject *instances, question *asked);

/* Choose and count in one step, into `guard` or, where that is NULL, into `charge`: 1. 0 where it is not for
 * this picker, -1 with an exception set. *instance is a new reference. */
int picker_count(Picker *picker, question *asked, Guard *guard, int32_t tokens, int visible, count_charge *charge,
                 PyObject **instance);

#endif
