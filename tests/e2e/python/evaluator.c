/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame evaluation function (PEP 523) as torch.compile has one: every Python call goes through
 * it, and the interpreter inlines none. For any CPython: without its headers.
 */
struct thread_state;
struct frame;
struct object;
struct interpreter_state;

typedef struct object* (*evaluate_frame)(struct thread_state*, struct frame*, int);
extern struct object* _PyEval_EvalFrameDefault(struct thread_state*, struct frame*, int);
extern struct interpreter_state* PyInterpreterState_Get(void);
extern void _PyInterpreterState_SetEvalFrameFunc(struct interpreter_state*, evaluate_frame);

static struct object* evaluate(struct thread_state* thread, struct frame* frame, int throw) {
  struct object* volatile result = _PyEval_EvalFrameDefault(thread, frame, throw);

  return result; /* no sibling call: it has a native frame of its own */
}

void install(void) { _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), evaluate); }
