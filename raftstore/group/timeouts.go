package group

import "time"

// Timeouts of the group. Zero values mean the defaults, which suit servers in one LAN; all servers
// should have the same.
type Timeouts struct {
	// Heartbeat is how long a follower waits without a message from the leader before it calls an
	// election: between once and twice this. It is for power losses and network failures: when the
	// leader's process dies, followers detect it at once by their broken connections. So it leaves
	// room for a leader that is short of CPU. Default: 1 s.
	Heartbeat time.Duration
	// Silence is how long a leader may be silent, in every way, to a quorum of the others, before
	// one of them campaigns without waiting for Heartbeat. It grows if leaders were silent for
	// longer and came back. Default: half of Heartbeat, and no less than 200 ms; negative: they
	// always wait.
	Silence time.Duration
	// Election is how long a candidate waits for votes before it tries again: between once and
	// twice this, and no less than Heartbeat. Default: Heartbeat.
	Election time.Duration
	// Lease is how long a leader stays one without a word from a quorum. It must not be longer
	// than Heartbeat. Default: five sixths of Heartbeat.
	Lease time.Duration
	// Call bounds one exchange with another server, other than a write. Default: 2 s.
	Call time.Duration
	// DiskWrite is how long a write to the log may take. A server with a longer write neither leads
	// nor campaigns until it is done: another server with a healthy disk is asked to lead. Default:
	// 2 s.
	DiskWrite time.Duration
	// PromoteAfter is how long a new server must have been caught up before it gets a vote.
	// Default: 1 s.
	PromoteAfter time.Duration
}

func (t Timeouts) WithDefaults() Timeouts {
	set := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	set(&t.Heartbeat, time.Second)
	if t.Silence == 0 {
		t.Silence = max(t.Heartbeat/2, 200*time.Millisecond)
	}
	set(&t.Election, t.Heartbeat)
	set(&t.Lease, t.Heartbeat*5/6)
	set(&t.Call, 2*time.Second)
	set(&t.DiskWrite, 2*time.Second)
	set(&t.PromoteAfter, time.Second)
	return t
}

// Tick is the interval of samples of the leader's failure detector; 0 without one.
func (t Timeouts) Tick() time.Duration { return max(t.Silence/SilenceTicks, 0) }

// SilenceTicks is how many ticks Timeouts.Silence has.
const SilenceTicks = 5

// Wake-ups of a process take longer when its machine is short of CPU, and an exchange between two
// servers has several of them. The time-outs that call a leader or a follower lost are extended by
// that:
const (
	// wakeUps is how many scheduling delays an exchange may need beyond its time-out.
	wakeUps = 6
	// ordinary is the part of Heartbeat up to which a scheduling delay is normal: it extends
	// nothing.
	ordinary = 40
	// mostExtension is how many times Heartbeat an extension is at most.
	mostExtension = 3
)

// Extension returns by how much the time-outs of exchanges between two servers are extended if the
// longer of their scheduling delays is that. It is 0 for machines that are not short of CPU.
func (t Timeouts) Extension(delay time.Duration) time.Duration {
	return min(max(wakeUps*(delay-t.Heartbeat/ordinary), 0), mostExtension*t.Heartbeat)
}
