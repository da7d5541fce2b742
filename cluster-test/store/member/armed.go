package member

import (
	"sync"
	"syscall"
)

// armedPoint kills the process at a fault point.
type armedPoint struct {
	mu   sync.Mutex
	args ArmArgs
}

func (p *armedPoint) arm(args ArmArgs) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.args = args
}

// at is raftstore.Config.FaultPoint. Nothing runs in this process after the hit that was asked for.
func (p *armedPoint) at(point string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.args.Point != point {
		return
	}
	if p.args.Hit--; p.args.Hit <= 0 {
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way to this thread or to another one
	}
}
