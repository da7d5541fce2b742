package election

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestRaftHeartbeat: a leader has the ordinary time-out, so that it sends as many heartbeats as
// ever. No server has less than that. A follower's becomes shorter only while the leader is heard.
func TestRaftHeartbeat(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const base = time.Second
	draw := func(most time.Duration) time.Duration { return time.Duration(rnd.Int64N(int64(most) + 1)) }
	for range 10_000 {
		now, extension, heard, leads := base+draw(3*base), draw(3*base), draw(2*base), rnd.IntN(4) == 0
		if rnd.IntN(3) == 0 {
			extension = 0
		}
		got := raftHeartbeat(now, base, extension, leads, heard)
		switch off := got - base - extension; {
		case got < base || got > 4*base:
			t.Fatalf("%v", got)
		case leads && got != base:
			t.Fatalf("a leader has %v", got)
		case !leads && got < now && heard >= base/2:
			t.Fatalf("a follower that heard the leader %v ago has %v in place of %v", heard, got, now)
		case !leads && heard < base/2 && (off > base/4 || off < -base/4):
			t.Fatalf("a follower with an extension of %v has %v", extension, got)
		case !leads && heard < base/2 && extension == 0 && got != base:
			t.Fatalf("a follower without an extension has %v", got)
		case !leads && extension == 3*base && got < now:
			t.Fatalf("%v is less than %v", got, now)
		}
		if again := raftHeartbeat(got, base, extension, leads, heard); again != got {
			t.Fatalf("%v becomes %v without a cause", got, again)
		}
	}
}
