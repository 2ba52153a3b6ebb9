/* Guard: one counted request; and what `async with` on it awaits. */
#include "types.h"

#include <structmember.h>

Guard *ledger_new_guard(Ledger *ledger) {
    Guard *guard = (Guard *)PyType_GenericAlloc(ledger->guard_type, 0);
    if (guard != NULL) {
        Py_INCREF((PyObject *)ledger);
        guard->ledger = ledger;
    }
    return guard;
}

static int guard_traverse(PyObject *self, visitproc visit, void *arg) {
    Guard *guard = (Guard *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(guard->instance);
    Py_VISIT((PyObject *)guard->ledger);
    return 0;
}

static int guard_clear(PyObject *self) {
    Py_CLEAR(((Guard *)self)->instance); /* the ledger is needed until the end */
    return 0;
}

static void release(Guard *guard) {
    Ledger *ledger = guard->ledger;
    ledger_lock(ledger);
    if (charge_is_open(&guard->charge)) {
        ledger_close(ledger, &guard->charge, &ledger->guarded_count);
    }
    UNLOCK(&ledger->lock);
}

static void guard_dealloc(PyObject *self) {
    Guard *guard = (Guard *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (guard->weak_references != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    /* In any thread, inside of any other call; a step is whole, so there is none to come in between. */
    release(guard);
    Py_XDECREF((PyObject *)guard->charge.seat);
    Py_XDECREF(guard->instance);
    Py_DECREF((PyObject *)guard->ledger);
    PyObject_GC_Del(self);
    Py_DECREF((PyObject *)type);
}

/* The request failed: its charge leaves the guard and stays for the hold time. */
static int fail(Guard *guard, int suspect) {
    Ledger *ledger = guard->ledger;
    int64_t now = ledger_now(ledger, 1);
    count_charge *held = now < 0 ? NULL : PyMem_Malloc(sizeof *held), *spare = held;
    if (now < 0) {
        return -1;
    }
    ledger_lock(ledger);
    if (charge_is_open(&guard->charge)) {
        if (held == NULL) {
            ledger_close(ledger, &guard->charge, &ledger->guarded_count);
        } else {
            charge_unlink(&guard->charge);
            ledger->guarded_count -= 1;
            *held = guard->charge;
            guard->charge.seat = NULL; /* its reference has moved */
            guard->charge.phase = CHARGE_CLOSED;
            held->held = 1;
            held->ends_at = later(now, ledger->hold_ns);
            const count_rows *rows = ledger_rows_of(ledger, held);
            if (rows != NULL) {
                count_hold(rows, held, suspect);
            }
            spare = ledger_add_unguarded(ledger, held);
            UNLOCK(&ledger->lock);
            ledger_free_charge(spare);
            return 0;
        }
    }
    UNLOCK(&ledger->lock);
    PyMem_Free(spare);
    return 0;
}

/* Whether `judge` says yes of `error`. A judge that fails knows nothing. -1 with an exception set. */
static int judged(PyObject *judge, PyObject *error) {
    PyObject *answer = judge == NULL ? NULL : PyObject_CallFunctionObjArgs(judge, error, NULL);
    int yes = answer == NULL ? 0 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        PyErr_Clear();
        yes = 0;
    }
    return yes;
}

static PyObject *guard_fail(PyObject *self, PyObject *args, PyObject *kwargs) {
    Guard *guard = (Guard *)self;
    static char *names[] = {"error", NULL};
    PyObject *error = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:fail", names, &error)) {
        return NULL;
    }
    int suspect = error == Py_None || !charge_is_open(&guard->charge) ? 0 : judged(guard->ledger->was_refused, error);
    if (suspect < 0 || fail(guard, suspect) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *guard_release(PyObject *self, PyObject *unused) {
    (void)unused;
    release((Guard *)self);
    Py_RETURN_NONE;
}

static PyObject *guard_first_token(PyObject *self, PyObject *unused) {
    (void)unused;
    Guard *guard = (Guard *)self;
    ledger_lock(guard->ledger);
    if (charge_is_open(&guard->charge)) {
        ledger_end_prefill(guard->ledger, &guard->charge);
    }
    UNLOCK(&guard->ledger->lock);
    Py_RETURN_NONE;
}

static PyObject *guard_enter(PyObject *self, PyObject *unused) {
    (void)unused;
    Py_INCREF(self);
    return self;
}

static int leave(Guard *guard, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "a guard's exit takes type, exception and traceback");
        return -1;
    }
    if (args[1] != Py_None && charge_is_open(&guard->charge)) {
        int failure = judged(guard->ledger->is_failure, args[1]);
        int suspect = failure > 0 ? judged(guard->ledger->was_refused, args[1]) : 0;
        if (failure < 0 || suspect < 0) {
            return -1;
        }
        if (failure > 0) {
            return fail(guard, suspect);
        }
    }
    release(guard);
    return 0;
}

static PyObject *guard_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    if (leave((Guard *)self, args, nargs) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* -- Ready: an awaitable that has its value already ----------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *value; /* NULL: collected */
} Ready;

static PyObject *ready(Guard *guard, PyObject *value) {
    module_state *state = state_of(guard->ledger->guard_type);
    Ready *result = state == NULL ? NULL : (Ready *)PyType_GenericAlloc(state->ready_type, 0);
    if (result != NULL) {
        Py_INCREF(value);
        result->value = value;
    }
    return (PyObject *)result;
}

static int ready_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((Ready *)self)->value);
    return 0;
}

static int ready_clear(PyObject *self) {
    Py_CLEAR(((Ready *)self)->value);
    return 0;
}

static void ready_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    ready_clear(self);
    free_object(self);
}

static PyObject *ready_itself(PyObject *self) {
    Py_INCREF(self);
    return self;
}

static PyObject *ready_next(PyObject *self) {
    PyObject *value = ((Ready *)self)->value;
    PyErr_SetObject(PyExc_StopIteration, value == NULL ? Py_None : value);
    return NULL;
}

static PyType_Slot ready_type_slots[] = {
    {Py_tp_dealloc, ready_dealloc},
    {Py_tp_traverse, ready_traverse},
    {Py_tp_clear, ready_clear},
    {Py_am_await, ready_itself},
    {Py_tp_iter, ready_itself},
    {Py_tp_iternext, ready_next},
    {Py_tp_doc, "What entering and leaving a guard with `async with` awaits; never waits."},
    {0, NULL},
};

PyType_Spec ready_spec = {
    .name = "score_table._native.Ready",
    .basicsize = sizeof(Ready),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = ready_type_slots,
};

static PyObject *guard_aenter(PyObject *self, PyObject *unused) {
    (void)unused;
    return ready((Guard *)self, self);
}

static PyObject *guard_aexit(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    return leave((Guard *)self, args, nargs) < 0 ? NULL : ready((Guard *)self, Py_None);
}

static PyMethodDef guard_methods[] = {
    {"first_token", guard_first_token, METH_NOARGS,
     "The first token came back: the prefill part of the price is taken back. Later calls do nothing."},
    {"fail", (PyCFunction)(void (*)(void))guard_fail, METH_VARARGS | METH_KEYWORDS,
     "fail(error=None): the instance failed the request; its price is kept for the hold time."},
    {"release", guard_release, METH_NOARGS, "The request is over."},
    {"__enter__", guard_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))guard_exit, METH_FASTCALL, NULL},
    {"__aenter__", guard_aenter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))guard_aexit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef guard_members[] = {
    {"instance", T_OBJECT_EX, offsetof(Guard, instance), READONLY, "the instance that was picked"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Guard, weak_references), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot guard_type_slots[] = {
    {Py_tp_dealloc, guard_dealloc},
    {Py_tp_traverse, guard_traverse},
    {Py_tp_clear, guard_clear},
    {Py_tp_methods, guard_methods},
    {Py_tp_members, guard_members},
    {Py_tp_doc, "The guard of one dispatched request: counted until the end, taken back exactly once."},
    {0, NULL},
};

PyType_Spec guard_spec = {
    .name = "score_table._native.Guard",
    .basicsize = sizeof(Guard),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = guard_type_slots,
};
