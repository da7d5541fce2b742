package runtimestate

import (
	"slices"
	"testing"
)

func TestOrderIPs(t *testing.T) {
	for _, c := range []struct{ ips, host, want []string }{
		{nil, []string{"192.0.2.1"}, nil},
		{[]string{"10.42.0.2"}, []string{"192.0.2.1"}, []string{"10.42.0.2"}},
		{[]string{"10.42.0.2"}, []string{"2001:db8::1"}, []string{"10.42.0.2"}},
		{[]string{"fd00::2", "10.42.0.2"}, []string{"192.0.2.1", "2001:db8::1"}, []string{"10.42.0.2", "fd00::2"}},
		{[]string{"10.42.0.2", "fd00::2"}, []string{"2001:db8::1", "192.0.2.1"}, []string{"fd00::2", "10.42.0.2"}},
		{[]string{"10.42.0.2", "10.42.0.3", "fd00::2"}, []string{"192.0.2.1"}, []string{"10.42.0.2", "fd00::2"}},
	} {
		if got := orderIPs(c.ips, c.host); !slices.Equal(got, c.want) {
			t.Errorf("%v on a node with %v: got %v, want %v", c.ips, c.host, got, c.want)
		}
	}
}
