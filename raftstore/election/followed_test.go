package election

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// TestCallsToALeaderEndWithIt: a call ends when another leader is known than the one that is asked,
// and not by the late notice that this one leads.
func TestCallsToALeaderEndWithIt(t *testing.T) {
	for name, c := range map[string]struct {
		asked raft.ServerID
		known []raft.ServerID // by Raft, each with its notice
		late  raft.ServerID   // known by Raft when the call begins, before its notice
		then  []raft.ServerID
		ends  bool
	}{
		"no change":                         {"b", []raft.ServerID{"a", "b"}, "", nil, false},
		"another leader":                    {"b", []raft.ServerID{"a", "b"}, "", []raft.ServerID{"c"}, true},
		"no leader":                         {"b", []raft.ServerID{"a", "b"}, "", []raft.ServerID{""}, false},
		"no leader for a moment":            {"b", []raft.ServerID{"a", "b"}, "", []raft.ServerID{"", "b"}, false},
		"a late notice":                     {"b", []raft.ServerID{"a"}, "b", []raft.ServerID{"b"}, false},
		"a late notice, then another":       {"b", []raft.ServerID{"a"}, "b", []raft.ServerID{"b", "c"}, true},
		"the first leader":                  {"a", nil, "a", []raft.ServerID{"a"}, false},
		"another one before the call":       {"a", []raft.ServerID{"a", "b"}, "", nil, true},
		"another one, without its notice":   {"a", []raft.ServerID{"c"}, "b", nil, true},
		"none now":                          {"a", []raft.ServerID{"b", ""}, "", nil, false},
		"of a destination without an ID":    {"", []raft.ServerID{"a"}, "", []raft.ServerID{"b"}, true},
		"the same, and nothing has changed": {"", []raft.ServerID{"a"}, "", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			f := followed{count: prometheus.NewCounter(prometheus.CounterOpts{Name: "changes"})}
			var leader raft.ServerID
			known := func() raft.ServerID { return leader }
			for _, leader = range c.known {
				f.learn(known)
			}
			if c.late != "" {
				leader = c.late
			}
			over := f.changed(c.asked, known)
			for _, leader = range c.then {
				f.learn(known)
			}
			select {
			case <-over:
				if !c.ends {
					t.Error("the call has ended")
				}
			default:
				if c.ends {
					t.Error("the call goes on")
				}
			}
		})
	}
}

// TestCallsToTheLeaderBeforeEndAtOnce: a call that learns of a change ends those to the leader
// before, without waiting for the notice.
func TestCallsToTheLeaderBeforeEndAtOnce(t *testing.T) {
	f := followed{count: prometheus.NewCounter(prometheus.CounterOpts{Name: "changes"})}
	leader := raft.ServerID("a")
	known := func() raft.ServerID { return leader }
	f.learn(known)
	before := f.changed("a", known)
	leader = "b"
	f.changed("b", known)
	select {
	case <-before:
	default:
		t.Error("the call to a goes on")
	}
}
