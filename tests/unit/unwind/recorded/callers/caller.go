// SPDX-License-Identifier: Apache-2.0
package main

/*
#cgo LDFLAGS: -llaunch
void launch(void);
int launch_nested(int depth);
int launch_through(void (*callback)(int), int value);
extern void goCallback(int value);
static int through(int value) { return launch_through(goCallback, value); }
*/
import "C"

import "sync"

type step struct{ depth int }

//go:noinline
func (s step) run(visit func(int)) {
	if s.depth > 0 {
		step{s.depth - 1}.run(visit)
		return
	}
	visit(7)
}

//export goCallback
func goCallback(value C.int) {
	if value > 0 {
		C.through(value - 1)
	}
}

func main() {
	C.launch()
	step{12}.run(func(n int) { C.launch_nested(C.int(n)) })
	C.through(3)
	var group sync.WaitGroup
	for i := 0; i < 2; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			step{3}.run(func(n int) { C.launch_nested(C.int(n)) })
			C.through(1)
		}()
	}
	group.Wait()
}
