// Package lifecycle starts components in order and stops them in the reverse order.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Component is one part of a process. Run blocks until its context ends or it fails.
type Component struct {
	Name string
	Run  func(ctx context.Context) error
	// Ready blocks until later components may rely on this one. nil: at once.
	Ready func(ctx context.Context) error
	// StopTimeout bounds the wait for Run to return after its context has ended; 10 s when 0.
	StopTimeout time.Duration
}

// Stack has the started components, in order. Start and Stop are for one goroutine.
//
//	Start a ─▶ Start b ─▶ … ─▶ Wait ─▶ Stop: … b, a
//
// When a component ends by itself, Wait returns why.
type Stack struct {
	logger  *slog.Logger
	started []*running
	failed  chan error // holds the first failure
}

type running struct {
	Component
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// ErrStopping is the cause with which a component's context ends when the stack stops.
var ErrStopping = errors.New("stopping")

// New returns an empty stack.
func New(logger *slog.Logger) *Stack {
	return &Stack{logger: logger, failed: make(chan error, 1)}
}

// Start runs the component and waits until it is ready, or until an earlier component fails: the
// new one may be waiting for that one. ctx bounds the wait only. The component runs until Stop
// reaches it.
func (s *Stack) Start(ctx context.Context, c Component) error {
	began := time.Now()
	runCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	r := &running{Component: c, cancel: cancel, done: make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		defer close(r.done)
		err := c.Run(runCtx)
		if runCtx.Err() == nil && err == nil {
			err = errors.New("it ended by itself")
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", c.Name, err)
			if runCtx.Err() != nil {
				s.logger.Warn("component stopped with an error", "component", c.Name, "err", err)
			}
		}
		ended <- err
		if runCtx.Err() == nil {
			select {
			case s.failed <- err:
			default: // another component failed first; this error is logged
				s.logger.Error("component failed", "component", c.Name, "err", err)
			}
		}
	}()
	s.started = append(s.started, r)
	if c.Ready == nil {
		return nil
	}
	readyCtx, stopWaiting := context.WithCancel(ctx)
	defer stopWaiting()
	ready := make(chan error, 1)
	go func() { ready <- c.Ready(readyCtx) }()
	select {
	case err := <-ended:
		stopWaiting()
		<-ready
		return err
	case err := <-s.failed:
		stopWaiting()
		<-ready
		return err
	case err := <-ready:
		if err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	s.logger.Debug("component ready", "component", c.Name, "after", time.Since(began))
	return nil
}

// Wait blocks until the context ends, which gives nil, or a component fails.
func (s *Stack) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}

// Stop ends all components, the newest first, each after the one before it has ended. A component
// that does not end in time is logged and left behind.
func (s *Stack) Stop() error {
	var errs []error
	for i := len(s.started) - 1; i >= 0; i-- {
		r := s.started[i]
		r.cancel(ErrStopping)
		timeout := r.StopTimeout
		if timeout == 0 {
			timeout = 10 * time.Second
		}
		timer := time.NewTimer(timeout)
		select {
		case <-r.done:
		case <-timer.C:
			errs = append(errs, fmt.Errorf("%s did not stop within %s", r.Name, timeout))
		}
		timer.Stop()
	}
	s.started = nil
	return errors.Join(errs...)
}

// All runs several functions, each in a goroutine: when one fails, the others' context ends too. It
// returns when all have returned.
func All(ctx context.Context, run ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	errs := make([]error, len(run))
	for i, f := range run {
		wg.Go(func() {
			if errs[i] = f(ctx); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
