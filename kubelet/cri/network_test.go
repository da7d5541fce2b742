package cri

import "testing"

// TestNetworkOf reads statuses as containerd and CRI-O show them.
func TestNetworkOf(t *testing.T) {
	for name, c := range map[string]struct {
		info, want string
		fails      bool
	}{
		"own network": {
			`{"pid":7,"runtimeSpec":{"ociVersion":"1.3.0","linux":{"namespaces":[{"type":"ipc"},{"type":"network","path":"/run/netns/cni-1"}]}}}`, "/run/netns/cni-1", false},
		"node's network":    {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"ipc"}]}}}`, "", false},
		"no path":           {`{"runtimeSpec":{"linux":{"namespaces":[{"type":"network"}]}}}`, "", true},
		"no specification":  {`{"pid":7}`, "", true},
		"no verbose status": {"", "", true},
	} {
		if got, err := networkOf(c.info); got != c.want || (err != nil) != c.fails {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
