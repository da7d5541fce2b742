package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// process is a program that runs, and its output.
type process struct {
	name string
	pid  int
	stop func() // waits until the process has ended
	kill func() // as kill -9 does, and waits
	done chan struct{}
	log  string
}

// start starts a program in a directory, where its log is. It ends with the context.
func start(ctx context.Context, work, program string, args ...string) (*process, error) {
	p := &process{name: filepath.Base(program), done: make(chan struct{})}
	p.log = filepath.Join(work, p.name+".log")
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, errors.Join(err, log.Close())
	}
	p.pid = cmd.Process.Pid
	// It ends with the process, which the context ends.
	go func() {
		_ = cmd.Wait()
		_ = log.Close()
		close(p.done)
	}()
	p.stop = func() { cancel(); <-p.done }
	p.kill = func() { _ = cmd.Process.Kill(); p.stop() }
	return p, nil
}

// await repeats a check until it succeeds, or the process has ended.
func (p *process) await(ctx context.Context, check func() error) error {
	err := Retry(ctx, p.done, check)
	if errors.Is(err, errEnded) {
		said, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s has ended: %s", p.name, said[max(0, len(said)-2000):])
	}
	return err
}

var errEnded = errors.New("it has ended")

// Retry repeats a check until it succeeds, for five minutes, or until the checked process has
// ended. A nil channel never ends.
func Retry(ctx context.Context, ended <-chan struct{}, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			return errEnded
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w", err)
		case <-time.After(poll): // brief: the interval of a poll
		}
	}
}

// poll is how exactly it is known when a server has become ready.
const poll = 20 * time.Millisecond

func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer ln.Close()
		ports = append(ports, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}
