package lifecycle_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/lifecycle"
)

// journal records events in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

func (j *journal) component(name string) lifecycle.Component {
	return lifecycle.Component{
		Name: name,
		Run: func(ctx context.Context) error {
			<-ctx.Done()
			j.add("stop " + name)
			return nil
		},
		Ready: func(context.Context) error { j.add("ready " + name); return nil },
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestOrder(t *testing.T) {
	j, s := &journal{}, lifecycle.New(quiet())
	for _, name := range []string{"a", "b", "c"} {
		if err := s.Start(t.Context(), j.component(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	want := []string{"ready a", "ready b", "ready c", "stop c", "stop b", "stop a"}
	if !slices.Equal(j.lines, want) {
		t.Fatalf("got %v; want %v", j.lines, want)
	}
}

func TestStartTellsOfAComponentThatDiesBeforeItIsReady(t *testing.T) {
	s, broken := lifecycle.New(quiet()), errors.New("port taken")
	err := s.Start(t.Context(), lifecycle.Component{
		Name:  "api",
		Run:   func(context.Context) error { return broken },
		Ready: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	})
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "api: ") {
		t.Fatalf("got %v", err)
	}
}

func TestWaitTellsWhoFailed(t *testing.T) {
	j, s, broken := &journal{}, lifecycle.New(quiet()), errors.New("disk gone")
	fail := make(chan struct{})
	if err := s.Start(t.Context(), j.component("a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context(),
		lifecycle.Component{Name: "store", Run: func(context.Context) error { <-fail; return broken }}); err != nil {
		t.Fatal(err)
	}
	close(fail)
	if err := s.Wait(t.Context()); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(j.lines, "stop a") {
		t.Fatal("the others were not stopped")
	}
}

func TestStopNamesWhoDoesNotStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, release := lifecycle.New(quiet()), make(chan struct{})
		if err := s.Start(t.Context(),
			lifecycle.Component{Name: "stuck", Run: func(context.Context) error { <-release; return nil },
				StopTimeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		if err := s.Stop(); err == nil || !strings.Contains(err.Error(), "stuck") {
			t.Fatalf("got %v", err)
		}
		close(release)
	})
}

func TestAllEndsTogether(t *testing.T) {
	broken := errors.New("broken")
	err := lifecycle.All(t.Context(),
		func(ctx context.Context) error { <-ctx.Done(); return nil },
		func(context.Context) error { return broken })
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
}

// A component that waits for a failed one must not wait for ever.
func TestAFailureEndsTheWaitForAnother(t *testing.T) {
	s, broken, fail := lifecycle.New(quiet()), errors.New("broken"), make(chan struct{})
	if err := s.Start(t.Context(),
		lifecycle.Component{Name: "a", Run: func(context.Context) error { <-fail; return broken }}); err != nil {
		t.Fatal(err)
	}
	err := s.Start(t.Context(), lifecycle.Component{
		Name:  "b",
		Run:   func(ctx context.Context) error { <-ctx.Done(); return nil },
		Ready: func(ctx context.Context) error { close(fail); <-ctx.Done(); return ctx.Err() },
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
}
