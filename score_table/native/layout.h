/* The words of the table that C reads or writes by name, as score_table/layout.py defines them.
 *
 * The module tells these values to Python (LAYOUT), which refuses a build that does not fit its own layout.
 */
#ifndef LOADBOARD_LAYOUT_H
#define LOADBOARD_LAYOUT_H

/* Hot line, bytes from the start of the table. */
#define HEARTBEAT_OFFSET 256
#define STATE_OFFSET 272
#define MEMBERSHIP_OFFSET 288
#define STATE_READY 1

/* Natural-unit rows of a lane; the levels come first. */
#define OUTSTANDING 0
#define PROMPT_TOKENS 1
#define KV_TOKENS 2
#define HELD 3
#define GUESSED 4
#define DISPATCHED 5
#define ENDED 6
#define SUSPECTS 7
#define BY_OUTSTANDING 8 /* of the dispatches, those decided by reason 1, and so on */
#define BY_MARKED 9
#define BY_ROUND_ROBIN 10
#define BY_UNMATCHED 11
#define NATURALS 12
#define NATURAL_LEVELS 5

/* Reasons of a pick; 0 is the score. */
#define REASONS 5

/* Lane block, 64-bit words. */
#define TOKEN_WORD 0
#define PICKS_WORD 3
#define COUNT_ERRORS_WORD 8
#define SATURATIONS_WORD 9

#define PROMPT_TOKENS_LIMIT (1 << 18)
#define DISPATCH_LIMIT (1 << 20)

#endif
