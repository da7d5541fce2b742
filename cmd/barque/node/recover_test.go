package node

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// oldServer makes the data directory of a server that has stopped, with one key.
func oldServer(t *testing.T, name string) string {
	t.Helper()
	dir := t.TempDir()
	host := new(memnet.Network).Host(name + ":6444")
	// A disk that is slow for a while costs it leaderships.
	s, err := raftstore.Open(raftstore.Config{Name: name, Dir: storeDir(dir), Bootstrap: true, ClusterID: "old", Stream: host, RetryFor: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Commit(t.Context(), raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/a", Value: []byte("1")}}})
	if err := errors.Join(err, s.Close(), host.Close()); err != nil {
		t.Fatal(err)
	}
	r := &record{dir: dir, Phase: phaseMember, Name: name, Role: pki.RoleServer,
		Cluster: join.Cluster{ID: "old", GossipKeys: [][]byte{make([]byte, 32)}, Servers: []join.Server{{Name: "s1"}, {Name: "s2"}}}}
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// checkRecovery makes sure that everything that carries the cluster's ID has the new one.
func checkRecovery(t *testing.T, dir, id string) {
	t.Helper()
	r, err := loadRecord(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r.Cluster.ID != id || r.Phase != phaseMember || len(r.Cluster.Servers) != 0 || len(r.Cluster.GossipKeys) != 1 || len(r.Cluster.GossipKeys[0]) != 32 || bytes.Equal(r.Cluster.GossipKeys[0], make([]byte, 32)) {
		t.Errorf("the record is %+v", r)
	}
	all, err := Survey([]string{dir}, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if s := all[0]; s.ClusterID != id || len(s.Members) != 1 || s.Keys != 2 || len(s.Predecessors) != 1 || s.Predecessors[0].Cluster != "old" || s.Recovering != "" {
		t.Errorf("the store is %+v", s.Report)
	}
}

func TestRecover(t *testing.T) {
	dir := oldServer(t, "s1")
	id, err := Recover(dir, quiet())
	if err != nil || id == "old" {
		t.Fatal(id, err)
	}
	checkRecovery(t, dir, id)
}

// The process dies after each step, and a second call, or the start of the server, finishes.
func TestRecoverIsFinishedAfterACrash(t *testing.T) {
	plan := `{"format":1,"clusterID":"new","was":"old","gossipKey":"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="}`
	for name, before := range map[string]func(t *testing.T, dir string){
		"the plan":  func(*testing.T, string) {},
		"the store": func(t *testing.T, dir string) { recoverStore(t, dir) },
		"the record": func(t *testing.T, dir string) {
			recoverStore(t, dir)
			r, err := loadRecord(dir)
			if err != nil {
				t.Fatal(err)
			}
			r.Cluster.ID, r.Cluster.Servers = "new", nil
			if err := r.save(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for how, finish := range map[string]func(dir string) error{
			"again":    func(dir string) error { _, err := Recover(dir, quiet()); return err },
			"at start": func(dir string) error { return finishRecovery(dir, quiet()) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				dir := oldServer(t, "s1")
				if err := os.WriteFile(recoverPath(dir), []byte(plan), 0o600); err != nil {
					t.Fatal(err)
				}
				before(t, dir)
				if err := finish(dir); err != nil {
					t.Fatal(err)
				}
				checkRecovery(t, dir, "new")
				if _, err := os.Stat(recoverPath(dir)); err == nil {
					t.Error("the plan is still there")
				}
			})
		}
	}
}

func recoverStore(t *testing.T, dir string) {
	t.Helper()
	if err := raftstore.Recover(raftstore.RecoverConfig{Dir: storeDir(dir), ClusterID: "new"}); err != nil {
		t.Fatal(err)
	}
}

func TestChooseTheNewest(t *testing.T) {
	member := []raftstore.Member{{Name: "s1", Self: true}, {Name: "s2"}}
	at := func(dir string, term, index uint64, change func(*Survivor)) Survivor {
		s := Survivor{Name: dir, DataDir: dir, Report: &raftstore.Report{ClusterID: "c", LastTerm: term, LastIndex: index, Members: member}}
		if change != nil {
			change(&s)
		}
		return s
	}
	for name, c := range map[string]struct {
		all  []Survivor
		want string
		best string // what is recommended; empty when nothing is
	}{
		"one":              {[]Survivor{at("a", 1, 5, nil)}, "", "a"},
		"as good":          {[]Survivor{at("a", 1, 5, nil), at("b", 1, 5, nil)}, "", "a"},
		"more entries":     {[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, nil)}, "b has more", "b"},
		"a later term":     {[]Survivor{at("a", 1, 5, nil), at("b", 2, 3, nil)}, "b has more", "b"},
		"more, but wrong":  {[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, func(s *Survivor) { s.Quarantined = "it differs" })}, "", "a"},
		"wrong itself":     {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Quarantined = "it differs" })}, "known to be wrong", ""},
		"taken out":        {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Removed = &raftstore.Removal{} })}, "taken out", ""},
		"not a member yet": {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Members = nil })}, "not of a member", ""},
		"the only voter":   {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Members = []raftstore.Member{{Name: "s1", Self: true, Voter: true}, {Name: "s2"}} })}, "start it", ""},
		"one of two voters": {[]Survivor{at("a", 1, 5, func(s *Survivor) {
			s.Members = []raftstore.Member{{Name: "s1", Self: true, Voter: true}, {Name: "s2", Voter: true}}
		})}, "", "a"},
		"wrong itself, and another one":      {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Quarantined = "it differs" }), at("b", 1, 4, nil)}, "known to be wrong", "b"},
		"taken out, and newer than the rest": {[]Survivor{at("a", 2, 9, func(s *Survivor) { s.Removed = &raftstore.Removal{} }), at("b", 1, 4, nil), at("c", 1, 5, nil)}, "taken out", "c"},
		"the rest is not a member yet":       {[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, func(s *Survivor) { s.Members = nil })}, "", "a"},
		"the newest votes alone": {[]Survivor{at("a", 1, 5, nil), at("b", 1, 6, func(s *Survivor) {
			s.Members = []raftstore.Member{{Name: "s1", Self: true, Voter: true}}
		})}, "b has more", ""},
		"begun elsewhere":    {[]Survivor{at("a", 9, 9, func(s *Survivor) { s.Quarantined = "it differs" }), at("b", 1, 5, func(s *Survivor) { s.Recovering = "new" })}, "known to be wrong", "b"},
		"of another cluster": {[]Survivor{at("a", 1, 5, nil), at("b", 1, 5, func(s *Survivor) { s.ClusterID = "d" })}, "of one cluster", ""},
		"begun":              {[]Survivor{at("a", 1, 5, func(s *Survivor) { s.Recovering = "new" }), at("b", 9, 9, nil)}, "", "a"},
	} {
		err := Choose(c.all)
		var unfit *UnfitError
		if (err == nil) != (c.want == "") || err != nil && (!errors.As(err, &unfit) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		best, err := Best(c.all)
		if (best == nil) != (c.best == "") || (err == nil) != (best != nil) || best != nil && best.DataDir != c.best {
			t.Errorf("%s: %+v is the best, %v, want %q", name, best, err, c.best)
		}
	}
}

// When none is fit, the reason of each is told: another one's may be easier to live with.
func TestWhyNoneIsTheBest(t *testing.T) {
	at := func(dir string, s Survivor) Survivor {
		s.Name, s.DataDir = dir, dir
		return s
	}
	_, err := Best([]Survivor{
		at("a", Survivor{Report: &raftstore.Report{ClusterID: "c", Quarantined: "it differs"}}),
		at("b", Survivor{Report: &raftstore.Report{ClusterID: "c", Removed: &raftstore.Removal{At: noon}}}),
		at("c", Survivor{Report: &raftstore.Report{ClusterID: "c"}}),
	})
	var unfit *UnfitError
	if !errors.As(err, &unfit) {
		t.Fatal(err)
	}
	for _, reason := range []string{"a is known to be wrong: it differs", "b was taken out of the cluster at 2026-11-20 12:00", "c is not of a member"} {
		if !strings.Contains(err.Error(), reason) {
			t.Errorf("%q is not told: %v", reason, err)
		}
	}
}

// A server that runs is refused at once, and which process it is.
func TestSurveyRefusesWhatRuns(t *testing.T) {
	dir := oldServer(t, "s1")
	running, err := lockData(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	synctest.Test(t, func(t *testing.T) { // time passes for who waits
		began := time.Now()
		_, err := Survey([]string{dir}, quiet())
		var used *UsedError
		if !errors.As(err, &used) || !errors.Is(err, filelock.ErrHeld) || used.DataDir != dir || used.PID != os.Getpid() || len(strings.Fields(used.Command)) > 2 {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v to say so", took)
		}
	})
}

func TestSurveyRefusesWhatIsNoServer(t *testing.T) {
	if _, err := Survey([]string{t.TempDir()}, quiet()); err == nil || !strings.Contains(err.Error(), "no server's data directory") {
		t.Errorf("an empty directory: %v", err)
	}
	dir := oldServer(t, "s1")
	if err := os.RemoveAll(filepath.Join(storeDir(dir), "log")); err != nil {
		t.Fatal(err)
	}
	if _, err := Survey([]string{dir}, quiet()); err == nil || !strings.Contains(err.Error(), "no log") {
		t.Errorf("without a log: %v", err)
	}
}
