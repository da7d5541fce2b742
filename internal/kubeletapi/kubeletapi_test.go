package kubeletapi

import (
	"net/http"
	"testing"
)

func TestOpensStream(t *testing.T) {
	upgrade := http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"websocket"}}
	for _, c := range []struct {
		path   string
		header http.Header
		want   bool
	}{
		{"/exec/ns/p/c", nil, true}, {"exec/ns/p/c", nil, true}, {"/attach/ns/p/u/c", nil, true},
		{"/run/ns/p/c", nil, true},
		{"/portForward/ns/p", nil, true}, {"/portforward/ns/p", nil, true}, {"/cri/exec/token", nil, true},
		{"//exec/ns/p/c", nil, true}, {"/./exec/ns/p/c", nil, true}, {"/pods/../exec/ns/p/c", nil, true},
		{"/exec", nil, true},
		{"/pods", nil, false}, {"/containerLogs/ns/exec/c", nil, false}, {"/executions", nil, false}, {"/", nil, false},
		{"", nil, false},
		{"/logs/", upgrade, true}, {"/", upgrade, true},
		{"", http.Header{"Connection": {"keep-alive"}, "Upgrade": {"h2c"}}, false},
	} {
		if got := OpensStream(c.path, c.header); got != c.want {
			t.Errorf("%q with %v: %t", c.path, c.header, got)
		}
	}
}

func TestForServers(t *testing.T) {
	for target, want := range map[string]bool{
		"barque/v1/upgrade/node": true, "/barque/v1/upgrade/node": true, "//barque//v1/upgrade/node": true,
		"x/../barque/v1/upgrade/node": true, "BARQUE/v1/upgrade/node": true, "barque/v1/upgrade": true,
		"barque/v1/hardening": false, "metrics": false, "": false, "barque/v1/upgrades": false,
	} {
		if got := ForServers(target); got != want {
			t.Errorf("%q: %v, want %v", target, got, want)
		}
	}
}
