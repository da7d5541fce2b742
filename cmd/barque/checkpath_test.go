package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.2": "10.0.0.2 0", "fd00::2": "fd00::2 0", "[fd00::2]": "fd00::2 0", "node-2.example": "node-2.example 0",
		"https://10.0.0.1": "10.0.0.1 6443", "https://10.0.0.1:7443/": "10.0.0.1 7443", "https://[fd00::1]:6443": "fd00::1 6443",
		"": "", "10.0.0.2:6443": "", "http://10.0.0.1:6443": "", "https://": "", "https://h:0": "", "https://h:70000": "", "https://h/x": "", "a b": "",
	} {
		m, err := parseTarget(text)
		if got := fmt.Sprint(m.host, " ", m.api); (err == nil) != (want != "") || err == nil && got != want {
			t.Errorf("%q: %s, %v; want %q", text, got, err, want)
		}
	}
}

// A machine is asked for the ports that this one will send to: docs/network.md has the table.
func TestPortsOfRoles(t *testing.T) {
	w := ways{role: roleServer, peerPort: 1, gossipPort: 2, kubeletPort: 3, vxlanPort: 4, wireguardPort: 5}
	for _, c := range []struct {
		role string
		m    target
		want string
	}{
		{roleServer, target{api: 9}, "9 1 2 2/udp 3 4/udp 5/udp"},
		{roleServer, target{}, "2 2/udp 3 4/udp 5/udp"},
		{roleAgent, target{api: 9}, "9 2 2/udp 4/udp 5/udp"},
		{roleAgent, target{}, "2 2/udp 4/udp 5/udp"},
	} {
		w.role = c.role
		var got []string
		for _, p := range w.ports(c.m) {
			got = append(got, fmt.Sprint(p.Number)+map[bool]string{true: "/udp"}[p.UDP])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s, %+v: %v; want %s", c.role, c.m, got, c.want)
		}
	}
}

func TestCheckRefusesWhatIsNoMachine(t *testing.T) {
	for _, args := range [][]string{{"10.0.0.1:6443"}, {"--role", "x", "10.0.0.1"}} {
		cmd := checkCommand()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
