package node

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

func TestJudgeDisk(t *testing.T) {
	ms := time.Millisecond
	view := func(name string, p50, p99 time.Duration) diskView {
		return diskView{member: Member{Name: name}, speed: DiskSpeed{Writes: 100, P50: p50, P99: p99}}
	}
	with := func(v diskView, edit func(*diskView)) diskView {
		edit(&v)
		return v
	}
	for _, c := range []struct {
		name   string
		own    diskView
		others []diskView
		to     string
	}{
		{"all are well", view("a", ms, 5*ms), []diskView{view("b", ms, 5*ms)}, ""},
		{"slower, but quick", view("a", 10*ms, 20*ms), []diskView{view("b", ms, 5*ms)}, ""},
		{"all are slow", view("a", 60*ms, 300*ms), []diskView{view("b", 40*ms, 200*ms), view("c", 20*ms, 90*ms)}, ""},
		{"slow", view("a", 60*ms, 90*ms), []diskView{view("b", 10*ms, 70*ms), view("c", 5*ms, 70*ms)}, "c"},
		{"slow now and then", view("a", 2*ms, 900*ms), []diskView{view("b", 2*ms, 20*ms)}, "b"},
		{"the quick one lags", view("a", 60*ms, 90*ms), []diskView{with(view("b", ms, ms), func(v *diskView) { v.lag = 5000 })}, ""},
		{"the quick one is full", view("a", 60*ms, 90*ms), []diskView{with(view("b", ms, ms), func(v *diskView) { v.full = true })}, ""},
		{"the quick one fails", view("a", 60*ms, 90*ms), []diskView{with(view("b", ms, ms), func(v *diskView) { v.err = true })}, ""},
		{"too few writes there", view("a", 60*ms, 90*ms), []diskView{with(view("b", ms, ms), func(v *diskView) { v.speed.Writes = 3 })}, ""},
		{"too few writes here", with(view("a", 60*ms, 90*ms), func(v *diskView) { v.speed.Writes = 3 }), []diskView{view("b", ms, ms)}, ""},
		{"full", with(view("a", ms, ms), func(v *diskView) { v.full = true }), []diskView{view("b", 90*ms, 90*ms)}, "b"},
		{"all are full", with(view("a", ms, ms), func(v *diskView) { v.full = true }), []diskView{with(view("b", ms, ms), func(v *diskView) { v.full = true })}, ""},
		{"alone", with(view("a", 60*ms, 90*ms), func(v *diskView) { v.full = true }), nil, ""},
	} {
		if got := judgeDisk(c.own, c.others); got.to.member.Name != c.to || (got.reason == "") != (c.to == "") {
			t.Errorf("%s: to %q because %q, want %q", c.name, got.to.member.Name, got.reason, c.to)
		}
	}
}

// workload writes through all servers until stop is closed.
func (s *sickbay) workload(stop <-chan struct{}) *sync.WaitGroup {
	clients := new(sync.WaitGroup)
	for i := range s.nodes {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(300 * time.Millisecond):
				}
				if err := s.write(i % len(s.nodes)); err != nil {
					s.t.Errorf("server %d: %v", i%len(s.nodes), err)
				}
			}
		})
	}
	return clients
}

// TestSlowDiskHandsOver: the leader whose disk becomes slow gives its office to one whose disk is not, once,
// and it stays there.
func TestSlowDiskHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		for i := range s.disks {
			s.disks[i].slowDown(time.Millisecond)
		}
		stop := make(chan struct{})
		clients := s.workload(stop)
		<-time.After(restAfter)
		slow := s.leader(-1)
		s.disks[slow].slowDown(60 * time.Millisecond)
		began := time.Now()
		s.await("another leader", func() bool { return s.nodes[slow].leadership.term() == 0 })
		if took := time.Since(began); took < diskLook*diskLooks-diskLook || took > diskWindow+diskLook*(diskLooks+1) {
			t.Errorf("it took %v", took)
		}
		next := s.leader(slow)
		term := s.nodes[next].leadership.term()
		<-time.After(2 * time.Minute)
		if now := s.nodes[next].leadership.term(); now != term {
			t.Errorf("server %d led in term %d, and does so in term %d", next, term, now)
		}
		close(stop)
		clients.Wait()
		s.check()
	})
}

// TestSlowDisksStay: where the disks of all servers are slow alike, nobody hands over; and where they take turns,
// it does not happen more often than once a minute.
func TestSlowDisksStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 3)
		for i := range s.disks {
			s.disks[i].slowDown(time.Duration(40+30*i) * time.Millisecond)
		}
		stop := make(chan struct{})
		clients := s.workload(stop)
		term := s.nodes[s.leader(-1)].leadership.term()
		<-time.After(2 * time.Minute)
		if now := s.nodes[s.leader(-1)].leadership.term(); now != term {
			t.Errorf("from term %d to %d", term, now)
		}
		for range 24 { // whoever leads has the slow disk
			leader := s.leader(-1)
			for i := range s.disks {
				s.disks[i].slowDown(time.Millisecond)
				if i == leader {
					s.disks[i].slowDown(80 * time.Millisecond)
				}
			}
			<-time.After(10 * time.Second)
		}
		if turns := s.nodes[s.leader(-1)].leadership.term() - term; turns < 1 || turns > 4 {
			t.Errorf("leadership went from hand to hand %d times in 4 minutes", turns)
		}
		close(stop)
		clients.Wait()
		s.check()
	})
}

// TestReserveTakes: a leader whose disk is full takes deletions only.
func TestReserveTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSickbay(t, 1)
		n := s.nodes[0]
		n.storage.reserve.path = t.TempDir() + "/reserve" // as if it were on disk
		n.storage.reserve.size = 1 << 50                  // for which there is never room again
		n.storage.reserve.release()
		_, err := n.Propose(s.ctx, s.request())
		if err == nil || !strings.Contains(err.Error(), "disk of this server is full") {
			t.Errorf("a write: %v", err)
		}
		req := s.request()
		req.Txn.Ops[0].Kind = kv.Delete
		if _, err := n.Propose(s.ctx, req); err != nil {
			t.Errorf("a deletion: %v", err)
		}
		if status := n.Status(); !status.DiskFull {
			t.Errorf("it says %+v", status)
		}
	})
}
