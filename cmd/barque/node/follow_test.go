package node

import (
	"context"
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
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// An agent goes on in the cluster that its own was recovered as, with all that it needs for that, and starts again.
func TestAgentFollowsItsClustersHeir(t *testing.T) {
	ca, err := pki.NewAuthority("old", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewAuthority("other", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	old := join.Cluster{ID: "old", CA: pki.NewBundle(ca), GossipKeys: [][]byte{{1}}, KeyGeneration: 7, Servers: []join.Server{{Name: "s1"}, {Name: "s2"}}, Settings: json.RawMessage(`{}`)}
	heir := join.Cluster{ID: "new", CA: pki.NewBundle(ca), GossipKeys: [][]byte{{2}}, Servers: []join.Server{{Name: "s1"}}}
	for name, c := range map[string]struct {
		change  func(*join.Cluster)
		follows bool
		servers int
	}{
		"the heir":           {func(*join.Cluster) {}, true, 1},
		"one without gossip": {func(h *join.Cluster) { h.Servers = nil }, true, 2},
		"another CA":         {func(h *join.Cluster) { h.CA = pki.NewBundle(other) }, false, 2},
		"no keys":            {func(h *join.Cluster) { h.GossipKeys = nil }, false, 2},
		"no name":            {func(h *join.Cluster) { h.ID = "" }, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var log syncbuf.Buffer
			dir := t.TempDir()
			a := &agent{cluster: "old", follows: make(chan struct{}, 1), logger: slog.New(slog.NewTextHandler(&log, nil)),
				record: &record{dir: dir, Phase: phaseMember, Name: "a1", Role: roleAgent, Cluster: old}}
			if err := a.record.save(); err != nil {
				t.Fatal(err)
			}
			is := heir
			c.change(&is)
			if err := a.follow(is); errors.Is(err, errFollows) != c.follows || err == nil {
				t.Errorf("follow: %v", err)
			}
			r, err := loadRecord(dir)
			if err != nil {
				t.Fatal(err)
			}
			want, key, generation := "old", byte(1), uint64(7)
			if c.follows {
				want, key, generation = "new", 2, 0
			}
			if r.Cluster.ID != want || r.Cluster.GossipKeys[0][0] != key || r.Cluster.KeyGeneration != generation || len(r.Cluster.Servers) != c.servers || r.Phase != phaseMember {
				t.Errorf("it has %+v", r.Cluster)
			}
			if got := len(a.follows) == 1; got != c.follows {
				t.Errorf("it starts again: %v", got)
			}
		})
	}
}

// Keys of the agent's own cluster win over an heir, in every order; and an heir is not followed while one who answers may be of
// the own cluster.
func TestOwnClusterIsAskedBeforeAnHeir(t *testing.T) {
	type answer struct {
		keys join.GossipKeys
		err  error
	}
	answers := map[string]answer{
		"own":    {join.GossipKeys{Generation: 5}, nil},
		"behind": {join.GossipKeys{Generation: 4}, nil},
		"heir":   {join.GossipKeys{Generation: 9, Heir: &join.Cluster{ID: "heir"}}, nil},
		"third":  {join.GossipKeys{}, &join.RefusedError{Status: http.StatusConflict}},
		"barred": {join.GossipKeys{}, &join.RefusedError{Status: http.StatusForbidden}},
		"starts": {join.GossipKeys{}, &join.RefusedError{Status: http.StatusServiceUnavailable}},
		"away":   {join.GossipKeys{}, errors.New("no route to host")},
	}
	for _, c := range []struct {
		servers []string
		want    string // keys of "own", "heir", "barred", or "" for another error
	}{
		{[]string{"own", "heir"}, "own"},
		{[]string{"away", "heir", "third", "own"}, "own"},
		{[]string{"barred", "own"}, "own"},
		{[]string{"away", "heir", "away"}, "heir"},
		{[]string{"heir", "third"}, "heir"},
		{[]string{"heir", "behind"}, ""},
		{[]string{"heir", "starts", "away"}, ""},
		{[]string{"heir", "barred"}, "barred"},
		{[]string{"third", "away"}, "barred"},
		{[]string{"away"}, ""},
	} {
		for range c.servers { // each begins once, both ways around
			c.servers = append(c.servers[1:], c.servers[0])
			for _, order := range [][]string{c.servers, backwards(c.servers)} {
				var servers []join.Server
				for _, name := range order {
					servers = append(servers, join.Server{Name: name})
				}
				keys, err := fetchKeys(t.Context(), servers, 5, func(_ context.Context, s join.Server) (join.GossipKeys, error) {
					return answers[s.Name].keys, answers[s.Name].err
				})
				got := ""
				switch {
				case errors.Is(err, keyring.ErrBarred):
					got = "barred"
				case err == nil && keys.Heir != nil:
					got = "heir"
				case err == nil:
					got = "own"
				}
				if got != c.want {
					t.Errorf("%v: %q, want %q (%v)", order, got, c.want, err)
				}
			}
		}
	}
}

func backwards(names []string) []string {
	out := slices.Clone(names)
	slices.Reverse(out)
	return out
}

// An agent asks more than once before it follows, and anew after its own cluster has answered.
func TestAgentAsksAgainBeforeItFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{cluster: "old", follows: make(chan struct{}, 1), logger: slog.New(slog.DiscardHandler), record: &record{dir: t.TempDir(), Cluster: join.Cluster{ID: "old"}}}
		own := join.GossipKeys{Generation: 3, Keys: [][]byte{{1}}}
		heir := func(id string) join.GossipKeys { return join.GossipKeys{Heir: &join.Cluster{ID: id}} }
		for i, step := range []struct {
			after   time.Duration
			keys    join.GossipKeys
			follows bool // tries to: the heir here tells too little for it
		}{
			{0, heir("new"), false},
			{time.Second, heir("new"), false},
			{2 * followAfter, own, false},
			{time.Second, heir("new"), false},
			{followAfter, heir("other"), false},
			{followAfter, heir("new"), false},
			{followAfter, heir("new"), true},
		} {
			<-time.After(step.after)
			ring, err := a.take(step.keys, nil)
			tried := err != nil && strings.Contains(err.Error(), "does not tell what is needed")
			if tried != step.follows || (err == nil) != (step.keys.Heir == nil) || err == nil && ring.Generation != 3 {
				t.Errorf("step %d: %+v, %v", i, ring, err)
			}
		}
	})
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
	r := &record{dir: file, Cluster: join.Cluster{ID: "old", CA: pki.NewBundle(ca)}}
	if err := r.follow(join.Cluster{ID: "new", CA: pki.NewBundle(ca), GossipKeys: [][]byte{{2}}}); err == nil || r.clusterID() != "old" {
		t.Errorf("%v, it is of %s", err, r.clusterID())
	}
}

func TestStraysAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s strays
		s.note("a1", "old")
		if s.cluster("a1") != "old" || s.cluster("a2") != "" {
			t.Errorf("a1 is of %q, a2 of %q", s.cluster("a1"), s.cluster("a2"))
		}
		<-time.After(strayShown)
		if c := s.cluster("a1"); c != "" {
			t.Errorf("after a while a1 is of %q", c)
		}
	})
}

// The mark of a server that was left behind is told on its machine, and a recovery takes it away.
func TestLeftBehindIsTold(t *testing.T) {
	dir := oldServer(t, "s1")
	if Begun(dir) != nil || LeftBehind(dir) != nil {
		t.Fatalf("before: %v, %v", Begun(dir), LeftBehind(dir))
	}
	mark, err := json.Marshal(raftstore.Succession{Cluster: "old", Heir: "new", By: "s2.x", At: noon})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(storeDir(dir), "outlived.json"), mark, 0o600); err != nil {
		t.Fatal(err)
	}
	w := Begun(dir)
	if w == nil || w.Severity != Critical || w.Mend != joinAnew || w.Node != "s1" {
		t.Errorf("it is told as %v", w)
	}
	all, err := Survey([]string{dir}, quiet())
	if err != nil || all[0].Outlived == nil || all[0].Outlived.Heir != "new" {
		t.Fatalf("%+v, %v", all, err)
	}
	if _, err := Recover(dir, quiet()); err != nil {
		t.Fatal(err)
	}
	if Begun(dir) != nil || LeftBehind(dir) != nil {
		t.Errorf("after its own recovery: %v, %v", Begun(dir), LeftBehind(dir))
	}
}
