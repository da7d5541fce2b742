package store

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/mountspace"
	"github.com/barque/barque/internal/osthread"
)

// keeper runs functions, one after the other, on one thread of its own. The thread is the parent of
// the members, which are killed when it ends, and has, where it may, a mount namespace of its own,
// in which they live: its mounts are gone when the last of them is.
type keeper struct {
	work chan func()
	done chan struct{}
}

// newKeeper starts the thread; stop ends it. In a mount namespace of its own the paths to keep are
// as they are outside; disks of others are not held there (mountspace).
func newKeeper(mounts bool, keep ...string) (*keeper, error) {
	k := &keeper{work: make(chan func()), done: make(chan struct{})}
	started := make(chan error)
	go osthread.Do(func() error { // ends with stop, which waits
		k.run(mounts, keep, started)
		return nil
	})
	if err := <-started; err != nil {
		return nil, err
	}
	return k, nil
}

func (k *keeper) run(mounts bool, keep []string, started chan<- error) {
	defer close(k.done)
	if mounts {
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = mountspace.Own(keep...)
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
