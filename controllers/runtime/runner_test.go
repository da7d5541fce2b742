package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/controllers/runtime"
)

var errOver = errors.New("leadership lost")

// elections is a Leadership whose terms the test begins and ends.
type elections struct {
	terms chan election
}

type election struct {
	ctx  context.Context
	term uint64
}

func newElections() *elections { return &elections{terms: make(chan election)} }

func (e *elections) AwaitLeadership(ctx context.Context) (context.Context, uint64, error) {
	select {
	case l := <-e.terms:
		return l.ctx, l.term, nil
	case <-ctx.Done():
		return nil, 0, context.Cause(ctx)
	}
}

func (e *elections) win(term uint64) (lose func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	e.terms <- election{ctx, term}
	return func() { cancel(errOver) }
}

// journal records what routines do.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

func start(t *testing.T, e *elections, routines ...runtime.Routine) (r *runtime.Runner, stop func()) {
	t.Helper()
	return startWith(t, runtime.Config{Leadership: e, Routines: routines})
}

// startWith is start with more of a configuration.
func startWith(t *testing.T, cfg runtime.Config) (r *runtime.Runner, stop func()) {
	t.Helper()
	if cfg.ClientsFor == nil {
		cfg.ClientsFor = func(context.Context) (kubernetes.Interface, error) { return &fake.Clientset{}, nil }
	}
	r, err := runtime.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	return r, func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func TestTermsDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		slow := runtime.Routine{Name: "slow", Run: func(ctx context.Context, _ kubernetes.Interface) error {
			term := runtime.TermFrom(ctx)
			j.note("begin %d", term)
			<-ctx.Done()
			time.Sleep(time.Second) // virtual: a routine that takes its time to end
			j.note("end %d: %v", term, context.Cause(ctx))
			return nil
		}}
		e := newElections()
		r, stop := start(t, e, slow)
		lose := e.win(3)
		synctest.Wait()
		if s := r.Status(); s.Phase != runtime.Leading || s.Term != 3 || !s.Routines[0].Running {
			t.Errorf("status while leading: %+v", s)
		}
		lose()
		synctest.Wait()
		if s := r.Status(); s.Phase != runtime.Draining {
			t.Errorf("status while draining: %+v", s)
		}
		lose = e.win(4) // blocks until term 3 has drained
		synctest.Wait()
		lose()
		time.Sleep(2 * time.Second)
		stop()
		want := []string{"begin 3", "end 3: leadership lost", "begin 4", "end 4: leadership lost"}
		if got := j.all(); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if s := r.Status(); s.Phase != runtime.Stopped {
			t.Errorf("status after the end: %+v", s)
		}
	})
}

func TestFailingRoutineIsRestartedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		began := time.Now()
		failing := runtime.Routine{Name: "failing", Run: func(ctx context.Context, _ kubernetes.Interface) error {
			j.note("%v", time.Since(began))
			switch len(j.all()) {
			case 1:
				return errors.New("no luck")
			case 2:
				panic("even less")
			case 3:
				return nil // ending early is a fault too
			}
			<-ctx.Done()
			return nil
		}}
		steady := runtime.Routine{Name: "steady", Run: func(ctx context.Context, _ kubernetes.Interface) error {
			<-ctx.Done()
			return nil
		}}
		e := newElections()
		r, stop := start(t, e, failing, steady)
		lose := e.win(1)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got, want := j.all(), []string{"0s", "100ms", "300ms", "700ms"}; !slices.Equal(got, want) {
			t.Errorf("started at %v, want %v", got, want)
		}
		s := r.Status()
		if s.Routines[0].Restarts != 3 || !s.Routines[0].Running ||
			!strings.Contains(s.Routines[0].LastError, "term goes on") {
			t.Errorf("failing: %+v", s.Routines[0])
		}
		if s.Routines[1].Restarts != 0 {
			t.Errorf("steady: %+v", s.Routines[1])
		}
		lose()
		stop()
	})
}

func TestNewLeaderStartsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started time.Time
		e := newElections()
		_, stop := start(t, e, runtime.Routine{Name: "r", Run: func(ctx context.Context, _ kubernetes.Interface) error {
			started = time.Now()
			<-ctx.Done()
			return nil
		}})
		elected := time.Now()
		e.win(1)
		synctest.Wait()
		if d := started.Sub(elected); d != 0 {
			t.Errorf("started %v after the election", d)
		}
		stop()
	})
}

func TestClientsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		e := newElections()
		r, err := runtime.New(runtime.Config{
			Leadership: e,
			ClientsFor: func(context.Context) (kubernetes.Interface, error) {
				if tries++; tries < 3 {
					return nil, errors.New("not yet")
				}
				return &fake.Clientset{}, nil
			},
			Routines: []runtime.Routine{
				{Name: "r", Run: func(ctx context.Context, _ kubernetes.Interface) error { <-ctx.Done(); return nil }}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		e.win(1)
		time.Sleep(time.Second)
		if s := r.Status(); s.Phase != runtime.Leading || tries != 3 {
			t.Errorf("phase %s after %d tries", s.Phase, tries)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	clients := func(context.Context) (kubernetes.Interface, error) { return nil, nil }
	run := func(context.Context, kubernetes.Interface) error { return nil }
	for name, cfg := range map[string]runtime.Config{
		"no leadership": {ClientsFor: clients},
		"no clients":    {Leadership: newElections()},
		"no name":       {Leadership: newElections(), ClientsFor: clients, Routines: []runtime.Routine{{Run: run}}},
		"no function":   {Leadership: newElections(), ClientsFor: clients, Routines: []runtime.Routine{{Name: "a"}}},
		"name twice": {Leadership: newElections(), ClientsFor: clients,
			Routines: []runtime.Routine{{Name: "a", Run: run}, {Name: "a", Run: run}}},
	} {
		if _, err := runtime.New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestPrepareComesBeforeTheRoutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var j journal
		e := newElections()
		r, err := runtime.New(runtime.Config{
			Leadership: e,
			ClientsFor: func(context.Context) (kubernetes.Interface, error) { return &fake.Clientset{}, nil },
			Prepare: func(ctx context.Context, _ kubernetes.Interface) error {
				j.note("prepare %d", runtime.TermFrom(ctx))
				if len(j.all()) < 3 {
					return errors.New("not yet")
				}
				return nil
			},
			Routines: []runtime.Routine{{Name: "r", Run: func(ctx context.Context, _ kubernetes.Interface) error {
				j.note("run")
				<-ctx.Done()
				return nil
			}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		lose := e.win(7)
		synctest.Wait()
		lose() // while preparation still fails: no routine of term 7 ever starts
		lose = e.win(8)
		time.Sleep(time.Second)
		lose()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got, want := j.all(), []string{"prepare 7", "prepare 8", "prepare 8", "run"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// At a stop the server leads until its routines have ended, and their client still writes. It
// writes no more once the leadership is lost, or a routine takes long to end.
func TestTheClientLastsForTheLastWrites(t *testing.T) {
	for name, c := range map[string]struct {
		loses  bool
		after  time.Duration // for which the routine goes on
		writes bool
	}{
		"a stop":                        {false, time.Second, true},
		"a stop, and a slow routine":    {false, time.Minute, false},
		"the leadership ends":           {true, 0, false},
		"the leadership ends, for long": {true, time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var writes context.Context
				ended := make(chan bool, 1)
				e := newElections()
				_, stop := startWith(t, runtime.Config{Leadership: e,
					ClientsFor: func(ctx context.Context) (kubernetes.Interface, error) {
						writes = ctx
						return &fake.Clientset{}, nil
					},
					Routines: []runtime.Routine{
						{Name: "tells", Run: func(ctx context.Context, _ kubernetes.Interface) error {
							<-ctx.Done()
							<-time.After(c.after)
							ended <- writes.Err() == nil
							return nil
						}}},
				})
				lose := e.win(1)
				synctest.Wait()
				if runtime.TermFrom(writes) != 1 {
					t.Error("the client has no term")
				}
				if c.loses {
					lose()
					synctest.Wait()
				}
				stop()
				if did := <-ended; did != c.writes {
					t.Errorf("the client writes at the routine's end: %t, want %t", did, c.writes)
				}
				if writes.Err() == nil {
					t.Error("the client writes after the end of the term")
				}
				lose()
			})
		})
	}
}
