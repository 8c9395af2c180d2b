// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

void launch(void);
int launch_nested(int depth);
int launch_through(void (*callback)(int), int value);

static int compare(const void* a, const void* b) {
  launch();
  return *(const int*)a - *(const int*)b;
}

static void on_signal(int number) { launch_nested(number % 2); }

static void callback(int value) {
  if (value > 0) launch_through(callback, value - 1);
}

static void* on_thread(void* unused) {
  launch_nested(5);
  raise(SIGUSR1);
  return unused;
}

int main(void) {
  int values[] = {3, 1, 2, 5, 4};
  pthread_t thread;
  signal(SIGUSR1, on_signal);
  launch();
  launch_nested(20);
  launch_through(callback, 3);
  qsort(values, 5, sizeof values[0], compare);
  raise(SIGUSR1);
  if (pthread_create(&thread, 0, on_thread, 0) != 0) return 1;
  pthread_join(thread, 0);
  return 0;
}
