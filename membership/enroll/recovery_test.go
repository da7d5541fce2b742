package enroll_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/membership/enroll"
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
	s, err := raftstore.Open(
		raftstore.Config{Name: name, Dir: enroll.StoreDir(dir), Bootstrap: true, ClusterID: "old", Stream: host,
			RetryFor: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Commit(t.Context(),
		raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/a", Value: []byte("1")}}})
	if err := errors.Join(err, s.Close(), host.Close()); err != nil {
		t.Fatal(err)
	}
	r := &enroll.Record{Dir: dir, Phase: enroll.PhaseMember, Name: name, Role: pki.RoleServer,
		Cluster: join.Cluster{ID: "old", GossipKeys: [][]byte{make([]byte, 32)},
			Servers: []join.Server{{Name: "s1"}, {Name: "s2"}}}}
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func survey(dir string) (backups.Survivor, error) {
	return backups.Survey(enroll.Directory(dir), quiet())
}

func recovered(dir string) (string, error) { return backups.Recover(enroll.Directory(dir), quiet()) }

// checkRecovery makes sure that everything that carries the cluster's ID has the new one.
func checkRecovery(t *testing.T, dir, id string) {
	t.Helper()
	r, err := enroll.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r.Cluster.ID != id || r.Phase != enroll.PhaseMember || len(r.Cluster.Servers) != 0 ||
		len(r.Cluster.GossipKeys) != 1 || len(r.Cluster.GossipKeys[0]) != 32 ||
		bytes.Equal(r.Cluster.GossipKeys[0], make([]byte, 32)) {
		t.Errorf("the record is %+v", r)
	}
	s, err := survey(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s.ClusterID != id || len(s.Members) != 1 || s.Keys != 2 || len(s.Predecessors) != 1 ||
		s.Predecessors[0].Cluster != "old" || s.Recovering != "" {
		t.Errorf("the store is %+v", s.Report)
	}
}

func TestRecover(t *testing.T) {
	dir := oldServer(t, "s1")
	id, err := recovered(dir)
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
			r, err := enroll.Load(dir)
			if err != nil {
				t.Fatal(err)
			}
			r.Cluster.ID, r.Cluster.Servers = "new", nil
			if err := r.Save(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for how, finish := range map[string]func(dir string) error{
			"again":    func(dir string) error { _, err := recovered(dir); return err },
			"at start": func(dir string) error { return backups.FinishRecovery(enroll.Directory(dir), quiet()) },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				dir := oldServer(t, "s1")
				if err := os.WriteFile(filepath.Join(dir, "recover.json"), []byte(plan), 0o600); err != nil {
					t.Fatal(err)
				}
				before(t, dir)
				if err := finish(dir); err != nil {
					t.Fatal(err)
				}
				checkRecovery(t, dir, "new")
				if _, err := os.Stat(filepath.Join(dir, "recover.json")); err == nil {
					t.Error("the plan is still there")
				}
			})
		}
	}
}

func recoverStore(t *testing.T, dir string) {
	t.Helper()
	if err := raftstore.Recover(raftstore.RecoverConfig{Dir: enroll.StoreDir(dir), ClusterID: "new"}); err != nil {
		t.Fatal(err)
	}
}

// A server that runs is refused at once, and which process it is.
func TestSurveyRefusesWhatRuns(t *testing.T) {
	dir := oldServer(t, "s1")
	running, err := enroll.Lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	synctest.Test(t, func(t *testing.T) { // time passes for who waits
		began := time.Now()
		_, err := survey(dir)
		var used *enroll.UsedError
		if !errors.As(err, &used) || !errors.Is(err, filelock.ErrHeld) || used.DataDir != dir ||
			used.PID != os.Getpid() || len(strings.Fields(used.Command)) > 2 {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v to say so", took)
		}
	})
}

func TestSurveyRefusesWhatIsNoServer(t *testing.T) {
	if _, err := survey(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no server's data directory") {
		t.Errorf("an empty directory: %v", err)
	}
	dir := oldServer(t, "s1")
	if err := os.RemoveAll(filepath.Join(enroll.StoreDir(dir), "log")); err != nil {
		t.Fatal(err)
	}
	if _, err := survey(dir); err == nil || !strings.Contains(err.Error(), "no log") {
		t.Errorf("without a log: %v", err)
	}
}
