package raftstore_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// BenchmarkCureOfAWrongState compares the two cures of one of three servers whose state is wrong:
// the leader's state comes to it, or it is removed and joins with an empty directory. The state has
// 100,000 keys of 1 KiB. It reports the seconds until the server serves again, and
// those of them without its vote. The program around the store, and a person who removes the server
// and lets it join, come on top. See docs/benchmarks.md.
func BenchmarkCureOfAWrongState(b *testing.B) {
	for name, cure := range map[string]func(w *wrongState, b *testing.B) (whole, voteless time.Duration){
		"transfer": (*wrongState).transfer, "rejoin": (*wrongState).rejoin,
	} {
		b.Run(name, func(b *testing.B) {
			w := newWrongState(b)
			var all, voteless time.Duration
			for b.Loop() {
				each, without := cure(w, b)
				all, voteless = all+each, voteless+without
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(all.Seconds()/float64(b.N), "s/cure")
			b.ReportMetric(voteless.Seconds()/float64(b.N), "s-without-vote/cure")
		})
	}
}

// wrongState is a group, with default timeouts, whose server 1 gets a wrong state.
type wrongState struct {
	*storetest.Cluster
	ready chan struct{}
}

const wrongServer = 1

func newWrongState(b *testing.B) *wrongState {
	w := &wrongState{ready: make(chan struct{}, 1)}
	root := b.TempDir()
	w.Cluster = storetest.NewCluster(b, 3, func(i int, cfg *raftstore.Config) {
		cfg.InMemory, cfg.Dir, cfg.Timeouts = false, filepath.Join(root, fmt.Sprint(i)), raftstore.Timeouts{}
		if i == wrongServer {
			cfg.OnNewState = func() { w.ready <- struct{}{} }
		}
	})
	value := strings.Repeat("x", 1<<10)
	for at := 0; at < 100_000; {
		var txn raftstore.Txn
		for range 100 {
			txn.Ops = append(txn.Ops,
				raftstore.Op{Kind: raftstore.Put, Key: fmt.Sprintf("/k%06d", at), Value: []byte(value)})
			at++
		}
		if _, err := w.Servers[0].Commit(b.Context(), txn); err != nil {
			b.Fatal(err)
		}
	}
	w.Await("equal states", func() bool { return sameState(w.Cluster) })
	return w
}

// serves waits until the server has the others' state and its vote.
func (w *wrongState) serves(b *testing.B) {
	w.Await("it serves", func() bool {
		_, err := w.Servers[wrongServer].View(b.Context(), raftstore.ViewOptions{})
		return err == nil && len(voters(w.Servers[0])) == 3
	})
}

func (w *wrongState) transfer(b *testing.B) (whole, voteless time.Duration) {
	dir := w.Configs[wrongServer].Dir
	w.Stop(wrongServer)
	os.Remove(filepath.Join(dir, "reseeded.json"))
	if err := os.WriteFile(filepath.Join(dir, "quarantine.json"), []byte(`{"reason": "a benchmark"}`),
		0o600); err != nil {
		b.Fatal(err)
	}
	w.Start(wrongServer)
	found := time.Now()
	<-w.ready
	stopped := time.Now()
	w.Stop(wrongServer)
	w.Start(wrongServer)
	w.serves(b)
	return time.Since(found), time.Since(stopped)
}

func (w *wrongState) rejoin(b *testing.B) (whole, voteless time.Duration) {
	began := time.Now()
	if err := w.Servers[0].Remove(b.Context(), w.Servers[wrongServer].ID(), "a benchmark"); err != nil {
		b.Fatal(err)
	}
	w.Stop(wrongServer)
	if err := os.RemoveAll(w.Configs[wrongServer].Dir); err != nil {
		b.Fatal(err)
	}
	w.Start(wrongServer)
	if err := w.Servers[wrongServer].Join(b.Context(), []string{storetest.Addr(0)}); err != nil {
		b.Fatal(err)
	}
	w.serves(b)
	return time.Since(began), time.Since(began)
}
