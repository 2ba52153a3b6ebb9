/* The module: its types, and what they were built for. */
#include "types.h"

#include <pthread.h>

uint64_t fork_epoch = 1;

/* Runs inside of fork(). Python clears the data of other threads in the child before any hook of Python runs, and what
 * is dropped there must not take back what the parent counts. */
static void begin_epoch(void) {
    fork_epoch++;
}

module_state *state_of(PyTypeObject *type) {
    PyObject *module = PyType_GetModule(type);
    module_state *state = module == NULL ? NULL : PyModule_GetState(module);
    if (state != NULL && state->picker_type == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the module is being unloaded");
        return NULL;
    }
    return state;
}

void free_object(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static PyObject *nothing(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"nothing", nothing, METH_NOARGS, "Does nothing: what a call costs, for the benchmark to compare with."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

/* What score_table/layout.py has to say as well, by its names there. */
static int add_layout(PyObject *module) {
    PyObject *layout = Py_BuildValue(
        "{s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}",
        "heartbeat", HEARTBEAT_OFFSET, "state", STATE_OFFSET, "membership", MEMBERSHIP_OFFSET, "READY", STATE_READY,
        "OUTSTANDING", OUTSTANDING,
        "PROMPT_TOKENS", PROMPT_TOKENS, "KV_TOKENS", KV_TOKENS, "HELD", HELD, "GUESSED", GUESSED,
        "DISPATCHED", DISPATCHED, "ENDED", ENDED, "SUSPECTS", SUSPECTS, "BY_OUTSTANDING", BY_OUTSTANDING,
        "BY_MARKED", BY_MARKED, "BY_ROUND_ROBIN", BY_ROUND_ROBIN, "BY_UNMATCHED", BY_UNMATCHED, "REASONS", REASONS,
        "NATURAL_LEVELS", NATURAL_LEVELS, "token", TOKEN_WORD, "picks", PICKS_WORD, "count_errors", COUNT_ERRORS_WORD,
        "saturations", SATURATIONS_WORD, "PROMPT_TOKENS_LIMIT", PROMPT_TOKENS_LIMIT,
        "DISPATCH_LIMIT", DISPATCH_LIMIT);
    int failed = layout == NULL || PyModule_AddObjectRef(module, "LAYOUT", layout) < 0;
    Py_XDECREF(layout);
    return failed ? -1 : 0;
}

static int module_exec(PyObject *module) {
    static int registered = 0;
    if (!registered && pthread_atfork(NULL, NULL, begin_epoch) != 0) {
        PyErr_SetString(PyExc_OSError, "pthread_atfork failed");
        return -1;
    }
    registered = 1;
    module_state *state = PyModule_GetState(module);
    if (add_type(module, &candidates_spec, &state->candidates_type) < 0 ||
        add_type(module, &core_spec, &state->core_type) < 0 || add_type(module, &rows_spec, &state->rows_type) < 0 ||
        add_type(module, &seat_spec, &state->seat_type) < 0 || add_type(module, &guard_spec, &state->guard_type) < 0 ||
        add_type(module, &ready_spec, &state->ready_type) < 0 ||
        add_type(module, &ledger_spec, &state->ledger_type) < 0 ||
        add_type(module, &picker_spec, &state->picker_type) < 0) {
        return -1;
    }
    return add_layout(module);
}

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    module_state *state = PyModule_GetState(module);
    Py_VISIT(state->candidates_type);
    Py_VISIT(state->core_type);
    Py_VISIT(state->rows_type);
    Py_VISIT(state->seat_type);
    Py_VISIT(state->guard_type);
    Py_VISIT(state->ready_type);
    Py_VISIT(state->ledger_type);
    Py_VISIT(state->picker_type);
    return 0;
}

static int module_clear(PyObject *module) {
    module_state *state = PyModule_GetState(module);
    Py_CLEAR(state->candidates_type);
    Py_CLEAR(state->core_type);
    Py_CLEAR(state->rows_type);
    Py_CLEAR(state->seat_type);
    Py_CLEAR(state->guard_type);
    Py_CLEAR(state->ready_type);
    Py_CLEAR(state->ledger_type);
    Py_CLEAR(state->picker_type);
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "score_table._native",
    .m_doc = "The native core: pick and count in C.",
    .m_size = sizeof(module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&module_definition);
}
