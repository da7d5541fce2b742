package raftstore_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport/memnet"
)

const crashDir = "RAFTSTORE_CRASH_DIR" // set for the process that is to be killed

func openAlone(dir string) (*raftstore.Server, error) {
	return raftstore.Open(raftstore.Config{
		Dir: dir, Bootstrap: true, Stream: new(memnet.Network).Host("alone"), SnapshotEvery: 200, TrailingLogs: 20,
	})
}

// TestCrashChild is the process that TestCrash kills: it writes, and prints each key when its write
// is acknowledged.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		t.Skip("it is started by TestCrash")
	}
	s, err := openAlone(dir)
	if err != nil {
		t.Fatal(err)
	}
	for worker := range 8 {
		go func() { // ends with the process
			for i := 0; ; i++ {
				key := fmt.Sprintf("/%d/%d/%d", os.Getpid(), worker, i)
				if _, err := s.Commit(context.Background(), put(key, "v")); err == nil {
					fmt.Printf("acknowledged %s\n", key)
				}
			}
		}()
	}
	select {}
}

// TestCrash kills a server several times in the middle of its writes, and looks for everything that
// it has acknowledged.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	var acknowledged []string
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.v")
		cmd.Env = append(os.Environ(), crashDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines, n := bufio.NewScanner(out), 0
		for lines.Scan() {
			if key, ok := strings.CutPrefix(lines.Text(), "acknowledged "); ok {
				acknowledged = append(acknowledged, key)
				if n++; n == 300*(round+1) {
					cmd.Process.Kill()
				}
			}
		}
		cmd.Wait()
		if n < 300 {
			t.Fatalf("round %d: only %d writes", round, n)
		}
	}
	s, err := openAlone(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v, err := s.View(limited(t), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range acknowledged {
		if _, ok := v.Get(key); !ok {
			t.Errorf("%s was acknowledged and is lost", key)
		}
	}
	t.Logf("%d acknowledged, %d found", len(acknowledged), v.Count("/", ""))
}

// TestClusterOverTLS is three servers on real sockets and disks, of which the leader goes.
func TestClusterOverTLS(t *testing.T) {
	ca := storetest.NewAuthority(t)
	ctx := limited(t)
	var servers []*raftstore.Server
	var muxes []*raftstore.Mux
	for i := range 3 {
		mux := ca.ServerMux()
		s, err := raftstore.Open(raftstore.Config{
			Name: fmt.Sprintf("s%d", i), Dir: t.TempDir(), Bootstrap: i == 0, ClusterID: "tls", Stream: mux,
			Timeouts: raftstore.Timeouts{PromoteAfter: time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if i > 0 {
			if err := s.Join(ctx, []string{muxes[0].Addr()}); err != nil {
				t.Fatal(err)
			}
		}
		servers, muxes = append(servers, s), append(muxes, mux)
	}
	for i := range 30 {
		if err := settled(ctx, servers[i%3], put(fmt.Sprintf("/k%d", i), "v")); err != nil {
			t.Fatal(err)
		}
	}
	voters := func() (n int) {
		for _, m := range servers[0].Members() {
			if m.Voter {
				n++
			}
		}
		return n
	}
	await.True(t, "all servers vote", func() bool { return voters() == 3 })
	if err := servers[0].Close(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := settled(ctx, servers[1], put("/after", "v")); err != nil {
		t.Fatal(err)
	}
	t.Logf("the first write after the leader left took %v", time.Since(start))
	v, err := servers[2].View(ctx, raftstore.ViewOptions{})
	if err != nil || v.Count("/", "") != 31 {
		t.Fatalf("%v, %v", v, err)
	}
}
