// Package osthread runs code on a separate operating-system thread, which may enter other
// namespaces (namespaces(7)) for good.
package osthread

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Do calls f on a thread that ends soon after it, and returns its error. That is never the
// process's first thread, which Go keeps when its goroutine ends (runtime.LockOSThread). The kernel
// shows a process by its first thread, such as its namespaces in /proc/PID/ns (proc(5)). Other
// programs would think that the whole process has moved.
func Do(f func() error) error {
	result := make(chan error, 1)
	go on(f, result)
	return <-result
}

// on calls f on this goroutine's thread, or on that of another goroutine.
func on(f func() error, result chan<- error) {
	runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
	if unix.Gettid() != os.Getpid() {
		err := errors.New("the function has ended its goroutine (runtime.Goexit) instead of returning")
		defer func() { result <- err }()
		err = f()
		return
	}
	// While the first thread is held here, the other goroutine gets another one.
	own := make(chan error, 1)
	go on(f, own)
	err := <-own
	runtime.UnlockOSThread()
	result <- err
}
