package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// act is a change to a fake cluster, a time after the workload began.
type act struct {
	at time.Duration
	do func(*fakeCluster)
}

func becomes(to health, servers ...int) func(*fakeCluster) {
	return func(c *fakeCluster) { c.turn(to, servers...) }
}

func loses(server int) func(*fakeCluster) { return func(c *fakeCluster) { c.lose(server) } }

// workRounds runs rounds of one minute while acts change the cluster, and returns their verdict.
func workRounds(t *testing.T, acts []act) (*Verdict, error) {
	cluster, servers := newFakeCluster(t, 3)
	for _, a := range acts {
		timer := time.AfterFunc(a.at, func() { a.do(cluster) })
		defer timer.Stop()
	}
	return rounds{total: 4 * time.Minute, each: time.Minute, progress: t.Logf, start: func(n int) (stopper, error) {
		return Start(t.Context(),
			Config{Servers: servers, Namespace: "n", Run: fmt.Sprintf("r%d", n), Seed: uint64(n), Clients: 1,
				Pause: 300 * time.Millisecond})
	}}.run(t.Context())
}

// TestServersAway: a server without an answer at the end of a round is not judged for that round.
// The run goes on, and the server is judged in each round that it answers. The other servers are
// judged in every round. The run ends with an error only if no server answers at its end.
func TestServersAway(t *testing.T) {
	for name, c := range map[string]struct {
		acts       []act
		unjudged   []string // each of these, in this order, and no more
		violations []string // likewise
		fails      bool
	}{
		"all is well": {},
		"one is away for less than patience": {
			acts: []act{{50 * time.Second, becomes(away, 3)}, {110 * time.Second, becomes(well, 3)}},
		},
		"one is away": {
			acts:     []act{{50 * time.Second, becomes(away, 3)}, {170 * time.Second, becomes(well, 3)}},
			unjudged: []string{"from s3: "},
		},
		"one is silent": {
			acts:     []act{{50 * time.Second, becomes(silent, 3)}, {170 * time.Second, becomes(well, 3)}},
			unjudged: []string{"from s3: "},
		},
		"the first one is silent": { // the first server that is asked for a write
			acts:     []act{{50 * time.Second, becomes(silent, 1)}, {170 * time.Second, becomes(well, 1)}},
			unjudged: []string{"from s1: "},
		},
		"two are away": { // the fake cluster needs no quorum
			acts: []act{{50 * time.Second, becomes(away, 1)}, {55 * time.Second, becomes(silent, 3)},
				{170 * time.Second, becomes(well, 1, 3)}},
			unjudged: []string{"from s1: ", "from s3: "},
		},
		"one is silent for less than patience": {
			acts: []act{{50 * time.Second, becomes(silent, 3)}, {110 * time.Second, becomes(well, 3)}},
		},
		"one is away from the beginning to the end": {
			acts:     []act{{0, becomes(away, 2)}},
			unjudged: []string{"from s2: ", "from s2: ", "from s2: "},
		},
		"one is away, and is wrong when it is back": {
			acts: []act{{50 * time.Second, becomes(away, 3)}, {150 * time.Second, becomes(well, 3)},
				{170 * time.Second, loses(3)}},
			unjudged:   []string{"from s3: "},
			violations: []string{"watcher on s3 was not told"},
		},
		"one was wrong before it was away": {
			acts: []act{{30 * time.Second, loses(3)}, {50 * time.Second, becomes(silent, 3)},
				{170 * time.Second, becomes(well, 3)}},
			unjudged:   []string{"from s3: "},
			violations: []string{"watcher on s3 was not told"},
		},
		"one is away, and another one is wrong": {
			acts: []act{{50 * time.Second, becomes(away, 3)}, {55 * time.Second, loses(2)},
				{170 * time.Second, becomes(well, 3)}},
			unjudged:   []string{"from s3: "},
			violations: []string{"watcher on s2 was not told"},
		},
		"one is away, and another one tells its watchers nothing": {
			acts: []act{{50 * time.Second, becomes(away, 3)}, {55 * time.Second, becomes(mute, 2)},
				{170 * time.Second, becomes(well, 3)}, {230 * time.Second, becomes(well, 2)}},
			unjudged:   []string{"from s3: "},
			violations: []string{"watcher on s2 came to revision"},
		},
		// the server has not answered for a whole minute
		"one tells its watchers nothing, and is away in the middle of that": {
			acts: []act{{55 * time.Second, becomes(mute, 2)}, {100 * time.Second, becomes(away, 2)},
				{110 * time.Second, becomes(mute, 2)}, {150 * time.Second, becomes(well, 2)}},
		},
		"nobody answers for a while": {
			acts:     []act{{50 * time.Second, becomes(silent, 1, 2, 3)}, {140 * time.Second, becomes(well, 1, 2, 3)}},
			unjudged: []string{"no server answered within 1m0s: s1: "},
		},
		"nobody takes a write in the end": {
			acts:     []act{{200 * time.Second, becomes(full, 1, 2, 3)}},
			unjudged: []string{"no server took the last write within 1m0s: s"},
			fails:    true,
		},
		"nobody answers in the end": {
			acts:       []act{{30 * time.Second, loses(2)}, {200 * time.Second, becomes(away, 1, 2, 3)}},
			unjudged:   []string{"no server answered within 1m0s: s1: "},
			violations: []string{"watcher on s2 was not told"},
			fails:      true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v, err := workRounds(t, c.acts)
				var silent *SilentError
				if errors.As(err, &silent) != c.fails || !c.fails && err != nil {
					t.Errorf("the work ended with %v", err)
				}
				// The watcher that moves may have been at a server that was away, which adds a
				// line. After the end of all servers no watcher may have the last writes, which
				// adds others.
				fixed := func(all []string) []string {
					return slices.DeleteFunc(slices.Clone(all), func(s string) bool {
						return strings.Contains(s, "watcher that moves") ||
							strings.Contains(name, "nobody") && strings.Contains(s, "no watcher tells")
					})
				}
				if got := fixed(v.Unjudged); !eachContains(got, c.unjudged) {
					t.Errorf("not judged: %q; want %q", got, c.unjudged)
				}
				if got := fixed(v.Violations); !eachContains(got, c.violations) ||
					len(c.violations) == 0 && len(v.Violations) > 0 {
					t.Errorf("not kept: %q; want %q", v.Violations, c.violations)
				}
				if v.Checked < 500 {
					t.Errorf("only %s", v)
				}
			})
		})
	}
}

// eachContains says whether there are as many texts as parts, and each contains its part.
func eachContains(texts, parts []string) bool {
	return slices.EqualFunc(texts, parts, strings.Contains)
}

// TestClientsWaitForAWatcher: a write before the first watch cannot be judged, so none is made.
func TestClientsWaitForAWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, servers := newFakeCluster(t, 2)
		cluster.slowList = 100 * time.Millisecond
		w, err := Start(t.Context(), Config{Servers: servers, Namespace: "n", Run: "r", Pause: 5 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // of virtual time
		v, err := w.Stop(t.Context(), time.Minute)
		if err != nil || v.Skipped > 0 || v.Checked < 100 || len(v.Violations)+len(v.Unjudged) > 0 {
			t.Errorf("%s, not kept %q, not judged %q, %v", v, v.Violations, v.Unjudged, err)
		}
	})
}

// TestProbeEndsWithoutAServer: the end looks for the last write through each server that answers.
func TestProbeEndsWithoutAServer(t *testing.T) {
	for name, c := range map[string]struct {
		end      []act // after the probe's end
		unjudged []string
		fails    bool
	}{
		"all answer":    {nil, nil, false},
		"one is away":   {[]act{{0, becomes(away, 1)}}, []string{"through s1: "}, false},
		"one is silent": {[]act{{0, becomes(silent, 2)}}, []string{"through s2: "}, false},
		"one comes back": {[]act{{0, becomes(silent, 2)}, {50 * time.Second, becomes(well, 2)}},
			nil, false},
		"two are away": {[]act{{0, becomes(away, 1)}, {0, becomes(silent, 3)}},
			[]string{"through s1: ", "through s3: "}, false},
		"nobody answers": {[]act{{0, becomes(away, 1, 2, 3)}}, nil, true},
		"nobody answers, and is silent then": {
			[]act{{0, becomes(away, 1, 2, 3)}, {59 * time.Second, becomes(silent, 1, 2, 3)}}, nil, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			cluster, servers := newFakeCluster(t, 3)
			p := NewProbe(servers, "n", "probe")
			p.Start(t.Context())
			time.Sleep(time.Second) // of virtual time
			p.stop()
			p.running.Wait()
			for _, a := range c.end {
				timer := time.AfterFunc(a.at, func() { a.do(cluster) })
				defer timer.Stop()
			}
			time.Sleep(time.Millisecond)
			r, err := p.Stop(t.Context(), time.Minute)
			var silent *SilentError
			if errors.As(err, &silent) != c.fails || !c.fails && err != nil ||
				c.fails && !strings.Contains(err.Error(), "connection refused") {
				t.Errorf("%s: it ended with %v", name, err)
			}
			if !eachContains(r.Unjudged, c.unjudged) || len(r.Violations) > 0 || r.Acknowledged < 50 {
				t.Errorf("%s: %+v", name, r)
			}
			if left := len(cluster.objects) > 0; left != c.fails {
				t.Errorf("%s: left is %v", name, cluster.objects)
			}
		})
	}
}

// TestProbeFindsLostWrites: the last look finds a loss, also at one server of several.
func TestProbeFindsLostWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, servers := newFakeCluster(t, 2)
		cluster.turn(away, 1)
		p := NewProbe(servers, "n", "probe")
		p.Start(t.Context())
		time.Sleep(time.Second) // of virtual time
		p.stop()
		p.running.Wait()
		delete(cluster.objects, "probe")
		r, err := p.Stop(t.Context(), time.Minute)
		if err != nil || len(r.Violations) == 0 || !strings.Contains(r.Violations[0], "its object is not there") {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

// TestRemoveThroughAnyServer: objects are removed through the servers that are left.
func TestRemoveThroughAnyServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster, servers := newFakeCluster(t, 3)
		cluster.turn(away, 1)
		cluster.turn(silent, 2)
		c := &checking{Options: Options{Config: new(rest.Config), Progress: t.Logf}, servers: servers, namespace: "n",
			report: new(Report)}
		if err := c.remove(t.Context()); err != nil || !cluster.removed {
			t.Errorf("removed: %v, %v", cluster.removed, err)
		}
		cluster.removed = false
		cluster.turn(away, 1, 2, 3)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := c.remove(ctx); err == nil || !strings.Contains(err.Error(), "barque kubectl delete namespace n") {
			t.Errorf("nobody is there, and it ended with %v", err)
		}
	})
}
