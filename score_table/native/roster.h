/* The objects a picker has seen: which seat each has, and the lists that come again and again.
 *
 * No function here runs Python code; what would (a last reference dropped) is handed out as `dropped`.
 */
#ifndef LOADBOARD_ROSTER_H
#define LOADBOARD_ROSTER_H

#include "types.h"

#define LISTS_KEPT 4
#define FINGERPRINTS 8

typedef struct {
    PyObject *object; /* NULL: free */
    Seat *seat;
} entry;

/* A list or tuple seen before, by content. Its seats are borrowed from the roster. */
typedef struct {
    Py_ssize_t length; /* 0: free */
    PyObject *copy; /* a list of the same objects, to compare with */
    PyObject **items;
    Seat **seats;
    uint64_t version;  /* of the ledger that the fields below are for */
    int usable;        /* every object has a slot */
    int every;         /* together they are all instances of the table */
    uint32_t count;    /* different slots */
    int32_t *slots;    /* in rising order */
    int32_t *position; /* first index in the list, by slot; -1: none */
    uint32_t width;    /* words in position */
} known_list;

typedef struct {
    entry *entries;
    size_t capacity, used; /* capacity: a power of 2, at least twice what is used */
    known_list lists[LISTS_KEPT];
    unsigned int next_list;
    uint64_t changes; /* of the lists that are kept */
    uint64_t fingerprints[FINGERPRINTS]; /* of lists that were seen once, lately */
    unsigned int next_fingerprint;
} roster;

/* What has to be dropped once nothing is locked: dropping a last reference may run any code. */
typedef struct {
    known_list lists[LISTS_KEPT];
    entry *entries;
    size_t capacity;
} dropped;

void roster_drop(dropped *what);

/* Empty the roster into *what. */
void roster_forget(roster *all, dropped *what);

/* The seat of an object, borrowed; NULL: it is not known. */
Seat *roster_seat(const roster *all, const PyObject *object);

/* Take an object up with its seat (new references). -1 without memory. */
int roster_enrol(roster *all, PyObject *object, Seat *seat, dropped *what);

/* Which of the lists kept is of the same objects in the same order; -1: none is. */
int roster_find(const roster *all, PyObject *sequence, int is_list, Py_ssize_t length);

/* Bring slots and positions of a kept list up to the ledger's version. -1 without memory. */
int roster_refresh(const Ledger *ledger, known_list *list);

/* Whether a list of that fingerprint was seen lately; from now on it was. */
int roster_seen(roster *all, uint64_t fingerprint);

/* Keep a list that comes again. `copy` is a list that nobody else has; nothing happens where it holds an object that
 * is not known, or is kept already. */
void roster_keep(roster *all, PyObject *copy, dropped *what);

/* An item of a list or tuple, borrowed. */
static inline PyObject *item_of(PyObject *sequence, int is_list, Py_ssize_t index) {
    return is_list ? PyList_GetItem(sequence, index) : PyTuple_GetItem(sequence, index);
}

#endif
