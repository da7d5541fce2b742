package bundle

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// featuresLimit bounds `runc features` on a busy machine.
const featuresLimit = 10 * time.Second

// features asks the built-in runc until one answer: it does not change in this process.
var features = onceAnswered{ask: askRunc}

// Features returns the output of the built-in `runc features`, in JSON.
func Features() ([]byte, error) { return features.get() }

// onceAnswered caches an answer, and no failure.
type onceAnswered struct {
	ask func(ctx context.Context) ([]byte, error)

	mu     sync.Mutex
	answer []byte
}

func (o *onceAnswered) get() ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.answer != nil {
		return o.answer, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), featuresLimit)
	defer cancel()
	answer, err := o.ask(ctx)
	if err != nil {
		return nil, err
	}
	o.answer = answer
	return answer, nil
}

// askRunc runs runc from memory, because it is not unpacked before a node starts.
func askRunc(ctx context.Context) ([]byte, error) {
	b, err := Open()
	if err != nil {
		return nil, err
	}
	component, err := b.component(Runc)
	if err != nil {
		return nil, err
	}
	content, err := b.content(component)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate(Runc, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("run runc from memory: %w", err)
	}
	file := os.NewFile(uintptr(fd), Runc)
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return nil, fmt.Errorf("run runc from memory: %w", err)
	}
	command := exec.CommandContext(ctx, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), "features")
	command.WaitDelay = time.Second // for a child that holds the output
	out, err := command.Output()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("runc features: no answer within %s", featuresLimit)
	case err != nil:
		return nil, fmt.Errorf("runc features: %w", err)
	}
	return out, nil
}
