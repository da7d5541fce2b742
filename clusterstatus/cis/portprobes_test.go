package cis

import (
	"strings"
	"testing"
)

// TestUnreachedPorts: a port that was not reached is neither open nor closed.
func TestUnreachedPorts(t *testing.T) {
	lost := Port{Why: "i/o timeout"}
	for id, do := range map[string]func(*Evidence){
		"1.3.7": func(e *Evidence) { e.Servers[0].Ports[10257] = lost },
		"1.4.2": func(e *Evidence) { e.Servers[0].Ports[10259] = lost },
		"4.2.4": func(e *Evidence) { e.Nodes[0].ReadOnly = lost },
		"4.3.1": func(e *Evidence) { e.Nodes[0].Proxy = lost },
	} {
		e := hardened()
		do(e)
		if r := judged(e, id); r.Status != Unknown || !strings.Contains(r.Reason, "timeout") {
			t.Errorf("%s: %+v", id, r)
		}
	}
}

// TestSuites: a port without TLS has no strong suite, and suites that were not tried count.
func TestSuites(t *testing.T) {
	for id, port := range map[string]func(*Evidence) *PortProbe{
		"1.2.29": func(e *Evidence) *PortProbe { return &e.Servers[0].API },
		"4.2.12": func(e *Evidence) *PortProbe { return &e.Nodes[0].Port },
	} {
		for want, d := range map[Status]PortProbe{Fail: {Plain: true}, Unknown: {Untried: "EOF"}, Pass: {}} {
			e := hardened()
			*port(e) = d
			if r := judged(e, id); r.Status != want {
				t.Errorf("%s of %+v: %+v, want %s", id, d, r, want)
			}
		}
	}
}
