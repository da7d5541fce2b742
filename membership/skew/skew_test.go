package skew

import (
	"errors"
	"strings"
	"testing"

	"github.com/barque/barque/pki"
)

// reported is the form in which nodes report a version.
func reported(own string) string { return "v1.37.2+barque." + own }

func TestJoin(t *testing.T) {
	const before, first, second, third = "0bca91a6", "v0.1.0", "v0.2.3", "v0.3.0-rc.1"
	for _, c := range []struct {
		role, joining string
		servers       []string
		why           string // empty: it may join
	}{
		{pki.RoleServer, first, []string{first}, ""},
		{pki.RoleServer, "v0.1.0-dev.g0bca91a6", []string{first, "v0.1.7"}, ""},
		{pki.RoleServer, first, []string{before}, ""},
		{pki.RoleServer, before, []string{first}, ""},
		{pki.RoleServer, second, []string{before}, "servers may be one minor version apart"},
		{pki.RoleServer, before, []string{second}, "servers may be one minor version apart"},
		{pki.RoleServer, third, []string{second, first},
			"server s1 has v0.1.0: servers may be one minor version apart"},
		{pki.RoleServer, third, []string{second}, ""},
		{pki.RoleAgent, second, []string{second}, ""},
		{pki.RoleAgent, first, []string{second, first}, ""},
		{pki.RoleAgent, second, []string{second, first},
			"server s1 has v0.1.0: an agent may not be of a later minor version than a server"},
		{pki.RoleAgent, before, []string{first}, ""},
		{pki.RoleAgent, before, []string{second}, "an agent may be one minor version behind the servers"},
		{pki.RoleAgent, first, nil, ""},
	} {
		var servers []Server
		for i, v := range c.servers {
			servers = append(servers, Server{Name: "s" + string(rune('0'+i)), Version: reported(v)})
		}
		check(t, c.role+" "+c.joining, Join("m", c.role, reported(c.joining), servers), c.why)
		if c.joining == before { // some builds report nothing
			check(t, c.role+" of no version", Join("m", c.role, "", servers), c.why)
		}
	}
}

func TestStart(t *testing.T) {
	for _, c := range []struct{ role, last, own, why string }{
		{pki.RoleServer, "v0.1.0", "v0.1.9", ""},
		{pki.RoleServer, "v0.1.0", "v0.2.0", ""},
		{pki.RoleServer, "v0.2.0", "v0.1.0", ""},
		{pki.RoleServer, "", "v0.1.0", ""},
		{pki.RoleServer, "", "v0.2.0", "one minor version at a time; start the next minor version after v0.0 first"},
		{pki.RoleServer, "v0.1.4", "v0.3.0",
			"one minor version at a time; start the next minor version after v0.1 first"},
		{pki.RoleServer, "v0.3.0", "v0.1.0",
			"the way back is one minor version at a time; start the version that used it last, v0.3.0"},
		{pki.RoleAgent, "v0.3.0", "v0.1.0", "the way back is one minor version at a time"},
		{pki.RoleAgent, "v0.1.0", "v0.3.0", ""},
	} {
		check(t, c.role+" from "+c.last+" to "+c.own, Start("/d", c.role, reported(c.last), reported(c.own)), c.why)
	}
}

func check(t *testing.T, name string, err error, why string) {
	t.Helper()
	var is *Error
	if why == "" && err != nil || why != "" && (!errors.As(err, &is) || !strings.Contains(err.Error(), why)) {
		t.Errorf("%s: %v, want %q", name, err, why)
	}
}
