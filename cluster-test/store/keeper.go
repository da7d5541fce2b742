package store

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// keeper runs functions, one after the other, on one thread of its own. The thread is the parent of
// the members, which are killed when it ends, and has, where it may, a mount namespace of its own, in
// which they live: what is mounted there is gone when the last of them is.
type keeper struct {
	work chan func()
	done chan struct{}
}

// newKeeper starts the thread; stop ends it.
func newKeeper(mounts bool) (*keeper, error) {
	k := &keeper{work: make(chan func()), done: make(chan struct{})}
	started := make(chan error)
	go k.run(mounts, started) // ends with stop, which waits
	if err := <-started; err != nil {
		return nil, err
	}
	return k, nil
}

func (k *keeper) run(mounts bool, started chan<- error) {
	// Never unlocked: the thread ends with the goroutine.
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// The first thread does not end before the process. While it is held here, the work gets another.
		go k.run(mounts, started)
		<-k.done
		runtime.UnlockOSThread()
		return
	}
	defer close(k.done)
	if mounts {
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			started <- fmt.Errorf("make a mount namespace (as root?): %w", err)
			return
		}
	}
	started <- nil
	for f := range k.work {
		f()
	}
}

// do runs f on the thread.
func (k *keeper) do(f func() error) error {
	result := make(chan error, 1)
	k.work <- func() { result <- f() }
	return <-result
}

func (k *keeper) stop() {
	close(k.work)
	<-k.done
}
