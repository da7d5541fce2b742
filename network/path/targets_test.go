package path

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.2": "10.0.0.2 0", "fd00::2": "fd00::2 0", "[fd00::2]": "fd00::2 0",
		"node-2.example":   "node-2.example 0",
		"https://10.0.0.1": "10.0.0.1 6443", "https://10.0.0.1:7443/": "10.0.0.1 7443",
		"https://[fd00::1]:6443": "fd00::1 6443",
		"":                       "", "10.0.0.2:6443": "", "http://10.0.0.1:6443": "", "https://": "",
		"https://h:0":     "",
		"https://h:70000": "", "https://h/x": "", "a b": "",
	} {
		m, err := ParseTarget(text)
		if got := fmt.Sprint(m.Host, " ", m.API); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v; want %q", text, got, err, want)
		}
	}
}

// A machine is asked for the ports that this one will send to: docs/network.md has the table.
func TestPortsOfRoles(t *testing.T) {
	n := Needs{Peer: 1, Gossip: 2, Kubelet: 3, VXLAN: 4, WireGuard: 5}
	for _, c := range []struct {
		server bool
		m      Target
		want   string
	}{
		{true, Target{API: 9}, "9 1 2 2/udp 3 4/udp 5/udp"},
		{true, Target{}, "6443? 1? 2 2/udp 3 4/udp 5/udp"}, // a server or an agent
		{false, Target{API: 9}, "9 2 2/udp 4/udp 5/udp"},
		{false, Target{}, "6443? 2 2/udp 4/udp 5/udp"},
	} {
		n.Server = c.server
		var got []string
		for _, p := range n.Ports(c.m) {
			got = append(got,
				fmt.Sprint(p.Number)+map[bool]string{true: "/udp"}[p.UDP]+map[bool]string{true: "?"}[p.ServerOnly])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("server %t, %+v: %v; want %s", c.server, c.m, got, c.want)
		}
	}
}

// A name that leads nowhere is a finding like any other. Findings have the order of the machines.
func TestExamineTellsOfNamesThatLeadNowhere(t *testing.T) {
	found := new(Needs).Examine(t.Context(), []Target{{Host: "b..x"}, {Host: "a..x"}})
	if len(found) != 2 || found[0].Name != "path to b..x" || found[1].Name != "path to a..x" {
		t.Fatalf("findings %+v", found)
	}
	for _, f := range found {
		if f.OK || f.Detail == "" || !strings.Contains(f.Remedy, "mend the name in DNS") {
			t.Errorf("%+v", f)
		}
	}
}
