package member

import (
	"sync"
	"syscall"
)

// trap waits for a fault point.
type trap struct {
	mu   sync.Mutex
	args TrapArgs
}

func (t *trap) set(args TrapArgs) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.args = args
}

// at is raftstore.Config.FaultPoint. Nothing runs in this process after the hit that was asked for.
func (t *trap) at(point string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.args.Point != point {
		return
	}
	if t.args.Hit--; t.args.Hit <= 0 {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way to this thread or to another one
	}
}
