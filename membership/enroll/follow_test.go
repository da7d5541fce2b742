package enroll

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// An agent goes on in the cluster that its own was recovered as, with all that it needs for that,
// and starts again.
func TestAgentFollowsItsClustersHeir(t *testing.T) {
	ca, err := pki.NewAuthority("old", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewAuthority("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old := join.Cluster{ID: "old", CA: pki.NewBundle(ca), GossipKeys: [][]byte{{1}}, KeyGeneration: 7,
		Servers: []join.Server{{Name: "s1"}, {Name: "s2"}}, Settings: json.RawMessage(`{}`)}
	successor := join.Cluster{ID: "new", CA: pki.NewBundle(ca), GossipKeys: [][]byte{{2}},
		Servers: []join.Server{{Name: "s1"}}}
	for name, c := range map[string]struct {
		change  func(*join.Cluster)
		follows bool
		servers int
	}{
		"the successor":      {func(*join.Cluster) {}, true, 1},
		"one without gossip": {func(h *join.Cluster) { h.Servers = nil }, true, 2},
		"another CA":         {func(h *join.Cluster) { h.CA = pki.NewBundle(other) }, false, 2},
		"no keys":            {func(h *join.Cluster) { h.GossipKeys = nil }, false, 2},
		"no name":            {func(h *join.Cluster) { h.ID = "" }, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncbuf.Buffer
			dir := t.TempDir()
			a := &Follower{cluster: "old", Follows: make(chan struct{}, 1),
				logger: slog.New(slog.NewTextHandler(&log, nil)),
				record: &Record{Dir: dir, Phase: PhaseMember, Name: "a1", Role: pki.RoleAgent, Cluster: old}}
			if err := a.record.Save(); err != nil {
				t.Fatal(err)
			}
			is := successor
			c.change(&is)
			if err := a.follow(is); errors.Is(err, errFollows) != c.follows || err == nil {
				t.Errorf("follow: %v", err)
			}
			r, err := Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			want, key, generation := "old", byte(1), uint64(7)
			if c.follows {
				want, key, generation = "new", 2, 0
			}
			if r.Cluster.ID != want || r.Cluster.GossipKeys[0][0] != key || r.Cluster.KeyGeneration != generation ||
				len(r.Cluster.Servers) != c.servers || r.Phase != PhaseMember {
				t.Errorf("it has %+v", r.Cluster)
			}
			if got := len(a.Follows) == 1; got != c.follows {
				t.Errorf("it starts again: %v", got)
			}
		})
	}
}

// An agent asks for a while before it follows, and anew after its own cluster has answered, or was
// seen, or nobody has answered for some time.
func TestAgentAsksAgainBeforeItFollows(t *testing.T) {
	successor := join.GossipKeys{Successor: &join.Cluster{ID: "new"}}
	type step struct {
		after   time.Duration
		keys    join.GossipKeys
		err     error
		sees    bool
		follows bool // tries to: the successor here tells too little for it
	}
	const often = 10 * time.Second
	asks := func(keys join.GossipKeys, lasts time.Duration) (steps []step) {
		for range lasts / often {
			steps = append(steps, step{after: often, keys: keys})
		}
		return steps
	}
	tries := []step{{after: often, keys: successor, follows: true}}
	behind, starting := error(&credentials.OwnAnswersError{Err: errors.New("generation 3")}),
		error(&credentials.OwnAnswersError{Err: &join.RefusedError{Status: http.StatusServiceUnavailable}})
	for name, c := range map[string]struct {
		steps []step // after the first answer of the successor, and followAfter less often of it
	}{
		"it follows": {tries},
		"its own cluster answers": {
			slices.Concat([]step{{after: often, keys: join.GossipKeys{Generation: 3}}}, asks(successor, followAfter),
				tries)},
		"one of its own is behind": {
			slices.Concat([]step{{after: often, err: behind}}, asks(successor, followAfter), tries)},
		"one of its own may start": {
			slices.Concat([]step{{after: often, err: starting}}, asks(successor, followAfter), tries)},
		"one of its own is seen": {
			slices.Concat([]step{{after: often, keys: successor, sees: true}}, asks(successor, followAfter), tries)},
		"another successor": {
			slices.Concat(asks(join.GossipKeys{Successor: &join.Cluster{ID: "other"}}, often),
				asks(successor, followAfter), tries)},
		"nobody, for a moment": {
			[]step{{after: often / 2, err: errors.New("no route to host")},
				{after: often / 2, keys: successor, follows: true}}},
		"nobody, for longer": {
			slices.Concat([]step{{after: offerHolds + often, keys: successor}}, asks(successor, followAfter-often),
				tries)},
		"it could not ask, for an hour": {
			slices.Concat([]step{{after: time.Hour, keys: successor}}, asks(successor, followAfter-often), tries)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &Follower{cluster: "old", Follows: make(chan struct{}, 1), logger: slog.New(slog.DiscardHandler),
					record: &Record{Dir: t.TempDir(), Cluster: join.Cluster{ID: "old"}}}
				for i, s := range slices.Concat([]step{{keys: successor}}, asks(successor, followAfter-often),
					c.steps) {
					<-time.After(s.after)
					ring, err := a.Take(s.keys, s.err, s.sees)
					tried := err != nil && strings.Contains(err.Error(), "does not send the required data")
					if tried != s.follows || (err == nil) != (s.keys.Successor == nil && s.err == nil) ||
						err == nil && ring.Generation != 3 {
						t.Errorf("step %d: %+v, %v", i, ring, err)
					}
				}
			})
		})
	}
}

// Who cannot write it down goes on as it was, and tries again.
func TestAgentThatCannotWriteDoesNotFollow(t *testing.T) {
	ca, err := pki.NewAuthority("old", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &Record{Dir: file, Cluster: join.Cluster{ID: "old", CA: pki.NewBundle(ca)}}
	if err := r.follow(join.Cluster{ID: "new", CA: pki.NewBundle(ca), GossipKeys: [][]byte{{2}}}); err == nil ||
		r.ClusterID() != "old" {
		t.Errorf("%v, it is of %s", err, r.ClusterID())
	}
}

func TestUnrelatedNodesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Unrelated
		s.Note("a1", "old")
		if s.Cluster("a1") != "old" || s.Cluster("a2") != "" {
			t.Errorf("a1 is of %q, a2 of %q", s.Cluster("a1"), s.Cluster("a2"))
		}
		<-time.After(unrelatedShown)
		if c := s.Cluster("a1"); c != "" {
			t.Errorf("after a while a1 is of %q", c)
		}
	})
}
